"""A run whose object comes back from a backup: a new UID, no status, nothing of what it owned but its annotations."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_operator.observe import read_run
from gymtrain_operator.reconcile.plan import Plan
from tests.support.world import World, applied, spec

NEW = "99999999-2222-3333-4444-555555555555"


def restored(old: World, name: str = "run", **blocks: Any) -> World:
    """The run's object made again with the annotations that the operator left on it."""
    world = World(name, **{**old.spec, **blocks})
    world.uid = NEW
    world.annotations = dict(old.annotations)
    world.now = old.now + 86400
    return world


def complete(**blocks: Any) -> World:
    world = World(**blocks).to_training(step=9)
    world.trainer_ends(0, '{"phase": "complete", "step": 10, "max_steps": 10, "reward": 0.75}')
    world.settle(5)
    assert world.status.state == "Complete"
    return world


def test_a_restored_run_that_was_complete_is_complete_at_once_and_says_what_to_do() -> None:
    old = complete()
    world = restored(old)
    done = world.reconcile()
    assert applied(done) == []
    assert world.status.state == "Complete"
    assert world.status.completion_time == old.status.completion_time
    told = world.condition(ConditionType.COMPLETE)
    assert told.message.startswith("10 steps, reward 0.7500")
    assert "delete the run and apply it without annotation gymtrain.dev/record" in told.message
    assert [event.reason for event in done.events] == [Reason.TRAINING_COMPLETED]
    before = world.status, dict(world.annotations)
    world.settle(500)
    assert (world.status, world.annotations) == before
    assert world.existing("Pod") == world.existing("Job") == []


def test_a_restored_run_that_failed_fails_with_its_reason() -> None:
    old = World(backoffLimit=0).to_training()
    old.trainer_ends(1, tail="boom")
    old.settle(5)
    world = restored(old)
    assert applied(world.reconcile()) == []
    failed = world.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", Reason.BACKOFF_LIMIT_EXCEEDED)
    assert "boom" in failed.message


def test_a_changed_spec_still_mends_a_restored_run_that_failed_preflight() -> None:
    old = World()
    old.reconcile()
    old.preflight_ends(gym=None)
    old.settle(5)
    world = restored(old)
    world.settle()
    assert world.status.state == "Failed"
    world.change(model={"source": "hf://org/other"})
    world.reconcile(5)
    assert len(world.existing("Pod")) == 1
    assert labels.RECORD not in world.annotations, "nothing has ended any more"


def test_a_manifest_under_another_name_is_another_run() -> None:
    world = restored(complete(), "copy")
    world.reconcile()
    assert world.status.state == "Preflight"
    world.preflight_ends()
    world.reconcile(5)
    assert world.existing("Job") == ["copy-trainer-1"]
    assert '"run":"copy"' in world.annotations[labels.RECORD]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "run"}', '{"run": "run", "uid": "u", "attempt": -1}'])
def test_an_annotation_that_is_no_record_is_none(text: str) -> None:
    meta = {"name": "run", "namespace": "ns", "uid": "u", "annotations": {labels.RECORD: text}}
    assert read_run({"metadata": meta, "spec": spec()}).record is None


def test_a_restored_run_goes_on_with_the_next_attempt_as_the_owner_of_its_checkpoints() -> None:
    old = World(trainer={"checkpoint": {"size": "1Gi"}}).to_training(step=4)
    old.trainer_ends(1)
    old.reconcile(11)
    old.trainer_reports("training", 6)
    old.reconcile(5)
    world = restored(old, backoffLimit=1)
    world.objects["PersistentVolumeClaim"] = old.objects["PersistentVolumeClaim"]
    world.settle()
    world.preflight_ends()
    world.reconcile(5)
    assert world.existing("Job") == ["run-trainer-3"]
    assert world.status.disrupted_attempts == [2], "its end is no failure of the run"
    (text,) = world.objects["ConfigMap"]["run-run"]["data"].values()
    assert f'"lineage": "{old.uid}"' in text
    again = restored(world)
    again.settle()
    again.preflight_ends()
    again.reconcile(5)
    assert again.existing("Job") == ["run-trainer-4"], "a restored run can be restored"
    (text,) = again.objects["ConfigMap"]["run-run"]["data"].values()
    assert f'"lineage": "{old.uid}"' in text


def test_a_restored_run_that_has_trained_waits_for_room() -> None:
    world = restored(World(startupDeadlineSeconds=60).to_training(step=4))
    world.settle()
    world.preflight_ends()
    world.reconcile(5)
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    pending = {"phase": "Pending", "conditions": [no_room]}
    world.add_pod("run-trainer-2-0-x", labels.Role.TRAINER, pending, **{labels.ATTEMPT: "2"})
    world.reconcile(3600)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_CAPACITY


def test_a_lost_status_of_a_run_that_trains_starts_no_second_trainer() -> None:
    world = World().to_training(step=4)
    world.status = type(world.status)()
    world.settle(5)
    assert world.existing("Job") == ["run-trainer-1"]
    assert world.status.attempt == 1


def test_a_restored_runs_time_to_live_counts_from_its_restoration() -> None:
    world = restored(complete(ttlSecondsAfterFinished=100))
    assert not world.reconcile().delete_run, "somebody restored it to have it"
    assert not world.reconcile(90).delete_run
    assert world.reconcile(20).delete_run


def test_the_record_is_news_once_an_attempt_once_it_trains_and_at_the_end() -> None:
    world = World()
    texts: list[str] = []

    def note(done: Plan) -> None:
        texts.extend([done.record] if done.record is not None else [])

    note(world.reconcile())
    world.preflight_ends()
    note(world.reconcile(5))
    world.servers_ready()
    for step in (0, 1, 2, 3):
        world.trainer_reports("training", step)
        note(world.reconcile(15))
    world.trainer_ends(0)
    note(world.reconcile(5))
    note(world.reconcile(50))
    assert len(texts) == 3, texts
    assert ['"trained":true' in text for text in texts] == [False, True, True]
    assert ['"ended":{' in text for text in texts] == [False, False, True]
