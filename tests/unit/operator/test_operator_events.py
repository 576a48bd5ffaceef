"""Events: news, once."""

from gymtrain_api.conditions import Reason
from gymtrain_api.wiring import Finding
from gymtrain_operator.reconcile.events import MAX_NOTE
from tests.support.world import GYM_VERDICT, World


def _reasons(world: World) -> list[tuple[str, str]]:
    assert world.last is not None
    return [(event.type, event.reason) for event in world.last.events]


def test_a_run_tells_its_way() -> None:
    world = World()
    told = []
    world.reconcile()
    told += _reasons(world)
    world.preflight_ends()
    world.reconcile(5)
    told += _reasons(world)
    world.servers_ready()
    world.trainer_reports("training", 1)
    world.reconcile(5)
    told += _reasons(world)
    world.trainer_ends(0)
    world.reconcile(5)
    told += _reasons(world)
    assert told == [
        ("Normal", Reason.PREFLIGHT_RUNNING),
        ("Normal", Reason.PREFLIGHT_PASSED),
        ("Normal", Reason.ALL_READY),
        ("Normal", Reason.TRANSPORT_CHOSEN),
        ("Normal", Reason.TRAINING),
        ("Normal", Reason.TRAINING_COMPLETED),
    ]


def test_no_news_no_events() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2)
    world.reconcile(5)
    assert _reasons(world) == []


def test_a_failure_is_one_warning_though_two_conditions_say_it() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(GYM_VERDICT.model_copy(update={"findings": [Finding(where="a", message="b" * 5000)]}))
    world.reconcile(5)
    assert world.last is not None
    (event,) = world.last.events
    assert (event.type, event.reason) == ("Warning", Reason.PREFLIGHT_FAILED)
    assert len(event.note) <= MAX_NOTE
