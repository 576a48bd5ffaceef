"""Finding preflight's verdict in what the containers print."""

from gymtrain_api.wiring import PREFLIGHT_MARK, GymPreflight, InferencePreflight, TrainerPreflight
from gymtrain_operator.reconcile.observation import Children
from gymtrain_operator.reconcile.verdicts import gym_verdict, inference_verdict, stored_verdict, trainer_verdict
from tests.support.world import World

LINE = PREFLIGHT_MARK + TrainerPreflight(max_steps=7).model_dump_json()


def test_the_verdict_stands_among_other_output() -> None:
    found = trainer_verdict(f"warning: x\n{LINE}\nbye\n")
    assert found is not None
    assert found.max_steps == 7


def test_the_verdict_may_follow_output_without_a_newline() -> None:
    assert trainer_verdict(f"loading ... 100%{LINE}") is not None


def test_the_last_verdict_counts() -> None:
    later = PREFLIGHT_MARK + TrainerPreflight(max_steps=8).model_dump_json()
    found = trainer_verdict(f"{LINE}\n{later}\n")
    assert found is not None
    assert found.max_steps == 8


def test_no_verdict_or_a_torn_one_is_none() -> None:
    assert trainer_verdict("") is None
    assert trainer_verdict("no such thing") is None
    assert trainer_verdict(LINE[:-5]) is None


def test_a_verdict_of_the_other_image_is_none() -> None:
    assert trainer_verdict(PREFLIGHT_MARK + GymPreflight().model_dump_json()) is None
    assert gym_verdict(LINE) is None
    assert inference_verdict(LINE) is None
    assert trainer_verdict(PREFLIGHT_MARK + InferencePreflight().model_dump_json()) is None


def test_a_damaged_record_means_another_preflight() -> None:
    world = World().to_servers()
    data = world.objects["ConfigMap"]["run-gym"]["data"]
    assert stored_verdict(Children(world.objects), "run") is not None
    for damage in ("", "{", "[]", '{"hash": "x"}'):
        data["preflight.json"] = damage
        assert stored_verdict(Children(world.objects), "run") is None
