"""Finding preflight's verdict in what the containers print."""

from gymtrain_api.wiring import PREFLIGHT_MARK, GymPreflight, InferencePreflight, TrainerPreflight
from gymtrain_operator.reconcile.observation import Children
from gymtrain_operator.reconcile.preflight import printed_verdict, stored_verdict
from tests.support.world import World

LINE = PREFLIGHT_MARK + TrainerPreflight(max_steps=7).model_dump_json()


def test_the_verdict_stands_among_other_output() -> None:
    found = printed_verdict(f"warning: x\n{LINE}\nbye\n", TrainerPreflight)
    assert found is not None
    assert found.max_steps == 7


def test_the_verdict_may_follow_output_without_a_newline() -> None:
    assert printed_verdict(f"loading ... 100%{LINE}", TrainerPreflight) is not None


def test_the_last_verdict_counts() -> None:
    later = PREFLIGHT_MARK + TrainerPreflight(max_steps=8).model_dump_json()
    found = printed_verdict(f"{LINE}\n{later}\n", TrainerPreflight)
    assert found is not None
    assert found.max_steps == 8


def test_no_verdict_or_a_torn_one_is_none() -> None:
    assert printed_verdict("", TrainerPreflight) is None
    assert printed_verdict("no such thing", TrainerPreflight) is None
    assert printed_verdict(LINE[:-5], TrainerPreflight) is None


def test_a_verdict_of_the_other_image_is_none() -> None:
    assert printed_verdict(PREFLIGHT_MARK + GymPreflight().model_dump_json(), TrainerPreflight) is None
    assert printed_verdict(LINE, GymPreflight) is None
    assert printed_verdict(LINE, InferencePreflight) is None
    assert printed_verdict(PREFLIGHT_MARK + InferencePreflight().model_dump_json(), TrainerPreflight) is None


def test_a_damaged_record_means_another_preflight() -> None:
    world = World().to_servers()
    data = world.objects["ConfigMap"]["run-gym"]["data"]
    assert stored_verdict(Children(world.objects), "run") is not None
    for damage in ("", "{", "[]", '{"hash": "x"}'):
        data["preflight.json"] = damage
        assert stored_verdict(Children(world.objects), "run") is None
