"""Training: attempts, backoff, deadlines, and the words for a failure."""

import json

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.times import to_text
from gymtrain_operator.reconcile.attempts import backoff_seconds
from tests.support.world import World, applied, deleted


def test_a_trainer_that_succeeds_completes_the_run() -> None:
    world = World().to_training(step=9)
    world.trainer_ends(0, json.dumps({"phase": "complete", "step": 10, "max_steps": 10, "reward": 0.75}))
    done = world.reconcile(5)
    assert world.status.state == "Complete"
    assert world.condition(ConditionType.COMPLETE).message == "10 steps, reward 0.7500"
    assert world.status.progress is not None
    assert world.status.progress.step == 10
    assert deleted(done) == [f"Deployment/{name}" for name in sorted(d.split("/")[1] for d in deleted(done))]
    assert world.existing("Deployment") == []
    assert world.existing("Job") == ["run-trainer-1"], "its pods have the log"
    assert world.existing("Service") != []


def test_completion_survives_the_loss_of_the_pod() -> None:
    world = World().to_training(step=9)
    world.trainer_ends(0)
    world.objects["Pod"] = {}
    world.reconcile(5)
    assert world.status.state == "Complete"
    assert world.status.progress is not None
    assert world.status.progress.step == 9


def test_a_failed_trainer_is_tried_again_after_a_pause() -> None:
    world = World().to_training()
    world.trainer_ends(1, tail="boom")
    done = world.reconcile()
    assert world.status.state == "Retrying"
    assert applied(done) == []
    assert done.requeue_after == pytest.approx(10)
    progressing = world.condition(ConditionType.PROGRESSING)
    assert progressing.reason == Reason.RETRYING
    assert "attempt 1 of 4 failed, the next starts at" in progressing.message
    assert progressing.message.endswith("Its last lines:\nboom")

    assert applied(world.reconcile(10.5)) == ["Job/run-trainer-2"]
    assert world.status.attempt == 2
    assert world.existing("Job") == ["run-trainer-1", "run-trainer-2"]
    assert world.existing("Deployment") != [], "servers stay up between attempts"


def test_the_message_of_a_pause_does_not_tick() -> None:
    world = World().to_training()
    world.trainer_ends(1)
    world.reconcile()
    before = world.status
    world.reconcile(3)
    assert world.status == before


def test_pauses_double_up_to_five_minutes() -> None:
    assert [backoff_seconds(n) for n in (1, 2, 3, 4, 5, 6, 7, 900)] == [10, 20, 40, 80, 160, 300, 300, 300]


def test_the_last_attempt_fails_the_run_and_quotes_its_log() -> None:
    world = World(backoffLimit=0).to_training()
    world.trainer_ends(1, tail="Traceback\nValueError: no")
    done = world.reconcile(5)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert "all 1 attempts failed (backoffLimit 0)" in failed.message
    assert "pod run-trainer-1-0-abcde, container trainer, ended with exit code 1" in failed.message
    assert failed.message.endswith("Traceback\nValueError: no")
    assert "Job/run-trainer-1" not in deleted(done)
    assert world.existing("Deployment") == []


def test_a_trainer_that_refuses_is_final_at_once() -> None:
    world = World(backoffLimit=5).to_training()
    world.trainer_ends(78, json.dumps({"phase": "failed", "message": "the weights in vLLM are not the trainer's"}))
    world.reconcile(5)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.TRAINER_REFUSED
    assert "the weights in vLLM are not the trainer's" in failed.message


def test_exit_code_78_of_another_container_is_no_refusal() -> None:
    world = World().to_training()
    world.trainer_ends(78, container="data")
    world.reconcile(5)
    assert world.status.state == "Retrying"
    assert "container data" in world.condition(ConditionType.PROGRESSING).message


def test_of_several_nodes_the_first_to_fail_is_quoted() -> None:
    world = World(trainer={"nodes": 2}, backoffLimit=0).to_training()
    world.trainer_ends(1)
    for rank, at in ((0, "2027-01-15T08:00:09Z"), (1, "2027-01-15T08:00:01Z")):
        end = {"exitCode": 1 + rank, "reason": "Error", "finishedAt": at}
        status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]}
        more = {labels.ATTEMPT: "1", "batch.kubernetes.io/job-completion-index": str(rank)}
        world.add_pod(f"run-trainer-1-{rank}-abcde", labels.Role.TRAINER, status, **more)
    world.reconcile(5)
    assert "pod run-trainer-1-1-abcde" in world.condition(ConditionType.FAILED).message


def test_a_job_made_just_before_the_operator_died_is_the_current_attempt() -> None:
    world = World().to_training()
    world.trainer_ends(1)
    before = world.status
    world.reconcile(11)
    world.status = before  # the status write was lost
    done = world.reconcile(1)
    assert applied(done) == []
    assert world.status.attempt == 2


def test_only_the_last_jobs_are_kept() -> None:
    world = World(backoffLimit=20).to_training()
    for _ in range(6):
        world.trainer_ends(1)
        world.reconcile(1000)
    assert world.existing("Job") == [f"run-trainer-{n}" for n in (4, 5, 6, 7)]


def test_servers_that_never_come_up_fail_the_run_and_are_named() -> None:
    world = World(startupDeadlineSeconds=60).to_servers()
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    status = {"phase": "Pending", "containerStatuses": [{"name": "gym", "state": {"waiting": waiting}}]}
    world.add_pod("run-gym-math-x", labels.Role.GYM, status, **{labels.SERVER: "math"})
    world.reconcile(50)
    assert world.condition(ConditionType.FAILED).status == "False"
    done = world.reconcile(20)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.STARTUP_DEADLINE_EXCEEDED
    assert "math (0/1)" in failed.message
    assert "ErrImagePull" in failed.message
    assert "Job/run-trainer-1" in deleted(done)


def test_a_trainer_that_finds_no_node_fails_the_run_at_the_same_deadline() -> None:
    world = World(startupDeadlineSeconds=60).to_servers()
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/4 nodes have nvidia.com/gpu"}]
    status = {"phase": "Pending", "conditions": conditions}
    world.add_pod("run-trainer-1-0-x", labels.Role.TRAINER, status, **{labels.ATTEMPT: "1"})
    world.reconcile(70)
    assert "0/4 nodes have nvidia.com/gpu" in world.condition(ConditionType.FAILED).message


def test_the_startup_deadline_is_over_once_weights_arrived() -> None:
    world = World(startupDeadlineSeconds=60).to_training()
    world.objects["Deployment"]["run-gym-math"]["status"] = {}
    world.seen.pop("progress")
    world.reconcile(3600)
    assert world.condition(ConditionType.FAILED).status == "False"


def test_a_trainer_that_the_operator_can_not_reach_is_left_to_its_work() -> None:
    world = World(startupDeadlineSeconds=60).to_servers()
    world.servers_ready()
    world.add_pod("run-trainer-1-0-x", labels.Role.TRAINER, {"phase": "Running"}, **{labels.ATTEMPT: "1"})
    world.reconcile(3600)
    assert world.condition(ConditionType.FAILED).status == "False"


def test_a_lost_answer_of_the_trainer_changes_nothing() -> None:
    world = World().to_training(step=4)
    status = {"phase": "Running", "containerStatuses": []}
    world.add_pod("run-trainer-1-0-x", labels.Role.TRAINER, status, **{labels.ATTEMPT: "1"})
    before = world.status
    world.seen.pop("progress")
    world.reconcile(2)
    assert world.status == before


def test_waiting_between_steps_is_training() -> None:
    world = World().to_training(step=4)
    world.trainer_reports("waiting_for_rollouts", 4, message="3 of 8 groups")
    world.reconcile(15)
    progressing = world.condition(ConditionType.PROGRESSING)
    assert (progressing.reason, progressing.message) == (Reason.TRAINING, "3 of 8 groups")


def test_failing_rollouts_are_said_and_recovered_from() -> None:
    world = World().to_training(step=4)
    world.trainer_reports("waiting_for_rollouts", 4, rollouts_failing_since=world.now, message="math_agent: HTTP 500")
    world.reconcile(2)
    progressing = world.condition(ConditionType.PROGRESSING)
    assert (progressing.status, progressing.reason) == ("False", Reason.ROLLOUTS_FAILING)
    assert "math_agent: HTTP 500" in progressing.message
    world.trainer_reports("training", 5)
    world.reconcile(2)
    assert world.condition(ConditionType.PROGRESSING).status == "True"


def test_a_run_that_takes_too_long_fails_and_its_trainer_goes() -> None:
    world = World(activeDeadlineSeconds=100).to_training(step=4)
    done = world.reconcile(60)
    assert world.status.state == "Training"
    assert done.requeue_after is not None
    done = world.reconcile(20)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.DEADLINE_EXCEEDED
    assert "100 s" in failed.message
    assert "step 4" in failed.message
    assert "Job/run-trainer-1" in deleted(done)


def test_a_run_that_completed_in_time_is_not_failed_by_the_deadline() -> None:
    world = World(activeDeadlineSeconds=100).to_training(step=9)
    world.trainer_ends(0)
    world.reconcile(500)
    assert world.status.state == "Complete"


def test_the_deadline_counts_in_preflight_too() -> None:
    world = World(activeDeadlineSeconds=10)
    world.reconcile()
    world.reconcile(11)
    assert world.condition(ConditionType.FAILED).reason == Reason.DEADLINE_EXCEEDED
    assert world.existing("Pod") == []


def test_a_new_attempt_does_not_take_the_step_back_to_zero() -> None:
    world = World().to_training(step=4)
    world.trainer_ends(1)
    world.reconcile(11)
    world.trainer_reports("starting", 0)
    world.reconcile(2)
    assert world.status.progress is not None
    assert world.status.progress.step == 4


def _stray(world: World, phase: str = "Running", **meta: object) -> None:
    """A trainer's pod that outlives its Job, as after `kubectl delete job`."""
    metadata = {"name": "run-trainer-1-0-old", "uid": "old", "labels": labels.run_labels("run", labels.Role.TRAINER)}
    world.strays = [{"kind": "Pod", "metadata": metadata | meta, "status": {"phase": phase}}]


def test_no_trainer_starts_while_one_runs_whose_job_was_deleted() -> None:
    world = World().to_training()
    del world.objects["Job"]["run-trainer-1"]
    _stray(world)
    assert applied(world.reconcile()) == []
    message = world.condition(ConditionType.PROGRESSING).message
    assert message.startswith("waiting for pod run-trainer-1-0-old to end, a trainer whose Job is gone")
    assert "kubectl delete pod run-trainer-1-0-old" in message
    _stray(world, "Failed")
    assert applied(world.reconcile(5)) == ["Job/run-trainer-1"]
    assert world.status.attempt == 1


def test_the_next_attempt_waits_for_a_trainer_whose_job_was_deleted() -> None:
    world = World().to_training()
    world.trainer_ends(1)
    _stray(world)
    assert applied(world.reconcile(15)) == []
    world.strays = []
    assert applied(world.reconcile(5)) == ["Job/run-trainer-2"]


def test_a_trainer_without_a_job_on_a_dead_node_is_told_with_the_remedy() -> None:
    world = World().to_training()
    del world.objects["Job"]["run-trainer-1"]
    _stray(world, deletionTimestamp=to_text(world.now))
    assert applied(world.reconcile(100)) == []
    assert world.status.state == "Retrying"
    assert "pod run-trainer-1-0-old should have ended by" in world.condition(ConditionType.PROGRESSING).message


def test_a_job_that_has_no_pod_is_touched_each_minute_so_that_its_controller_looks_again() -> None:
    """The Job controller that missed an event of a pod neither makes one nor ends the Job, however long one waits."""
    world = World().to_training()
    world.job["status"] = {"failed": 1}
    world.reconcile(30)
    assert labels.WOKEN_AT not in world.job["metadata"].get("annotations", {}), "it may only be slow"
    world.reconcile(60)
    woken = world.job["metadata"]["annotations"][labels.WOKEN_AT]
    assert woken == to_text(world.now)
    assert world.reconcile(30).updates == ()
    world.reconcile(31)
    assert world.job["metadata"]["annotations"][labels.WOKEN_AT] == to_text(world.now) != woken


def test_a_job_that_has_a_pod_is_left_alone() -> None:
    world = World().to_training()
    world.add_pod("run-trainer-1-0", labels.Role.TRAINER, {"phase": "Running"}, **{labels.ATTEMPT: "1"})
    assert world.reconcile(900).updates == ()
