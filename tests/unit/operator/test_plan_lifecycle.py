"""Suspension, the end, and what comes after it."""

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import InferenceStatus
from gymtrain_operator.reconcile.observation import Rejection, Run
from gymtrain_operator.reconcile.plan import plan
from tests.support.world import DEFAULTS, START, World, applied, deleted


def test_suspension_stops_all_pods_and_keeps_the_rest() -> None:
    world = World(trainer={"checkpoint": {"size": "1Gi"}}).to_training(step=4)
    world.change(suspend=True)
    done = world.reconcile(5)
    assert world.existing("Deployment") == world.existing("Job") == world.existing("Pod") == []
    assert all(d.foreground for d in done.delete if d.kind in {"Job", "Deployment"})
    assert world.existing("PersistentVolumeClaim") == ["run-checkpoints"]
    assert world.status.state == "Suspended"
    assert world.status.attempt == 1
    assert world.status.progress is not None
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "True"


def test_suspension_leaves_the_servers_until_the_trainer_is_told() -> None:
    """Rollouts that lost their servers before the trainer had the signal counted as lost, and their rows as done."""
    world = World(sandboxes={}).to_training(step=4)
    trainer = world.add_trainer_pod()
    world.add_pod("run-box", labels.Role.SANDBOX, {"phase": "Running"})
    servers = world.existing("Deployment")
    world.change(suspend=True)
    done = world.reconcile(5)
    assert "Job/run-trainer-1" in deleted(done)
    assert done.requeue_after == 1
    world.told_to_stop(trainer)
    world.reconcile(9)
    assert world.existing("Deployment") == servers
    assert "run-box" in world.existing("Pod")
    world.reconcile(1)
    assert world.existing("Deployment") == []
    assert world.existing("Pod") == [trainer], "it writes its checkpoint"


def test_suspension_takes_the_servers_of_a_trainer_that_has_ended_at_once() -> None:
    world = World().to_training(step=4)
    trainer = world.add_trainer_pod()
    world.change(suspend=True)
    world.reconcile(5)
    world.told_to_stop(trainer)
    world.objects["Pod"][trainer]["status"] = {"phase": "Succeeded"}
    world.reconcile(1)
    assert world.existing("Deployment") == []


def test_a_run_over_its_deadline_leaves_the_servers_until_the_trainer_is_told() -> None:
    world = World(activeDeadlineSeconds=600).to_training(step=4)
    trainer = world.add_trainer_pod()
    servers = world.existing("Deployment")
    done = world.reconcile(700)
    assert world.condition(ConditionType.FAILED).reason == Reason.DEADLINE_EXCEEDED
    assert "Job/run-trainer-1" in deleted(done)
    assert done.requeue_after == 1
    world.told_to_stop(trainer)
    assert world.reconcile(9).requeue_after == 1
    assert world.existing("Deployment") == servers
    assert world.reconcile(1).requeue_after is None
    assert world.existing("Deployment") == []


def test_an_ended_run_waits_for_no_pod_of_a_job_that_has_ended() -> None:
    """Its node may be gone, and the pod's phase stay as it was."""
    world = World().to_training(step=9)
    world.add_trainer_pod()
    world.trainer_ends(0)
    world.settle(5)
    assert world.existing("Deployment") == []


def test_a_resumed_run_goes_on_with_the_same_attempt_and_without_preflight() -> None:
    world = World().to_training(step=4)
    world.change(suspend=True)
    world.reconcile(5)
    world.seen.clear()
    world.change(suspend=False)
    world.reconcile(100)
    assert world.existing("Job") == ["run-trainer-1"]
    assert world.existing("Pod") == []
    assert world.status.attempt == 1
    suspended = world.condition(ConditionType.SUSPENDED)
    assert (suspended.status, suspended.reason) == ("False", Reason.RESUMED)


def test_a_resumed_run_goes_on_with_the_attempt_that_only_its_record_knows() -> None:
    """Nobody let the operator write the status while the attempt ran; the record is written before."""
    world = World(backoffLimit=0).to_training(step=4)
    world.status = world.status.model_copy(update={"attempt": None})
    world.change(suspend=True)
    world.reconcile(5)
    world.status = world.status.model_copy(update={"attempt": None})
    world.reconcile(5)
    assert world.existing("Job") == []
    world.seen.clear()
    world.change(suspend=False)
    world.reconcile(100)
    assert world.existing("Job") == ["run-trainer-1"], "it didn't fail"
    assert world.status.attempt == 1


def test_a_run_made_suspended_waits() -> None:
    world = World(suspend=True)
    assert applied(world.reconcile()) == []
    assert world.status.state == "Suspended"
    world.change(suspend=False)
    world.reconcile(5)
    assert len(world.existing("Pod")) == 1


def test_suspended_time_is_left_out_of_the_deadline() -> None:
    world = World(activeDeadlineSeconds=100).to_training()
    world.change(suspend=True)
    world.reconcile(5)
    world.change(suspend=False)
    world.reconcile(1000)
    assert world.status.suspended_seconds == 1000
    assert world.condition(ConditionType.FAILED).status == "False"
    world.reconcile(80)
    assert world.condition(ConditionType.FAILED).reason == Reason.DEADLINE_EXCEEDED


def test_two_suspensions_add_up() -> None:
    world = World().to_training()
    for _ in range(2):
        world.change(suspend=True)
        world.reconcile(5)
        world.reconcile(20)  # looking at a suspended run doesn't count its time twice
        world.change(suspend=False)
        world.reconcile(30)
    assert world.status.suspended_seconds == 100


def test_a_resumed_run_starts_its_startup_deadline_again() -> None:
    world = World(startupDeadlineSeconds=60).to_training()
    world.change(suspend=True)
    world.reconcile(5)
    world.seen.clear()
    world.change(suspend=False)
    world.reconcile(1000)
    # It has room, so it isn't waited for without end (test_plan_capacity.py).
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    world.add_pod("run-trainer-1-0-x", labels.Role.TRAINER, status, **{labels.ATTEMPT: "1"})
    world.reconcile(30)
    assert world.condition(ConditionType.FAILED).status == "False"
    world.reconcile(40)
    assert world.condition(ConditionType.FAILED).reason == Reason.STARTUP_DEADLINE_EXCEEDED


def test_a_job_that_still_ends_is_waited_for_on_resuming() -> None:
    world = World().to_training()
    world.job["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    done = world.reconcile(5)
    assert applied(done) == []
    assert done.requeue_after is not None


def test_an_ended_run_does_nothing_more() -> None:
    world = World().to_training(step=9)
    world.trainer_ends(0)
    world.settle(5)
    before = world.status
    done = world.reconcile(5000)
    assert (applied(done), deleted(done), done.requeue_after) == ([], [], None)
    assert world.status == before


def test_a_run_that_ends_has_no_servers_though_their_pods_are_still_there() -> None:
    """Its status would be written once more when they are gone, for each of many runs."""
    world = World().to_training(step=9)
    world.add_pod("run-inference-x", labels.Role.INFERENCE, {"phase": "Running"})
    world.reconcile(5)
    selector = "gymtrain.dev/run=run,gymtrain.dev/role=inference"
    assert world.status.inference == InferenceStatus(replicas=1, selector=selector)
    world.trainer_ends(0)
    while not world.status.is_true(ConditionType.COMPLETE):
        world.reconcile(5)
    world.add_pod("run-inference-x", labels.Role.INFERENCE, {"phase": "Running"})
    world.reconcile(5)
    assert world.status.inference == InferenceStatus(replicas=0, selector=selector)


def test_the_status_of_a_run_that_an_earlier_release_ended_stays_as_it_is() -> None:
    world = World().to_training(step=9)
    world.trainer_ends(0)
    world.settle(5)
    world.status = world.status.model_copy(update={"inference": None})
    before = world.status
    world.reconcile(5)
    assert world.status == before


def test_an_ended_run_is_not_brought_back_by_suspending() -> None:
    world = World().to_training(step=9)
    world.trainer_ends(0)
    world.settle(5)
    world.change(suspend=True)
    world.reconcile(5)
    assert world.status.state == "Complete"
    assert world.status.observed_generation == 2


def test_servers_that_come_back_after_the_end_are_removed() -> None:
    world = World().to_training(step=9)
    deployment = dict(world.objects["Deployment"]["run-inference"])
    world.trainer_ends(0)
    world.settle(5)
    world.objects["Deployment"]["run-inference"] = deployment
    assert deleted(world.reconcile(5)) == ["Deployment/run-inference"]


def test_an_ended_run_is_deleted_when_its_time_is_over() -> None:
    world = World(ttlSecondsAfterFinished=100).to_training(step=9)
    world.trainer_ends(0)
    world.reconcile(5)
    done = world.reconcile(60)
    assert not done.delete_run
    assert done.requeue_after == 40
    assert world.reconcile(41).delete_run


def test_a_run_on_its_way_out_is_left_to_the_garbage_collector() -> None:
    world = World().to_training()
    world.deleting = True
    done = world.reconcile(5)
    assert (applied(done), deleted(done), done.events) == ([], [], ())


def test_an_unreadable_spec_fails_the_run_and_says_what_is_wrong() -> None:
    seen = World().observe()
    run = Run("run", "ns", "uid", 1, None, seen.run.status, spec_error="spec.model: Field required")
    done = plan(type(seen)(run=run, now=START), DEFAULTS)
    failed = next(c for c in done.status.conditions if c.type == ConditionType.FAILED)
    assert (failed.status, failed.reason, failed.message) == ("True", Reason.INVALID_SPEC, "spec.model: Field required")


def test_a_template_that_the_api_server_refuses_fails_the_run_with_its_words() -> None:
    world = World()
    refusal = Rejection("Pod", "run-preflight-1", "spec.containers[0].image: Required value", final=True)
    world.reconcile(rejections=(refusal,))
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.INVALID_SPEC
    assert "spec.containers[0].image: Required value" in failed.message


def test_a_refusal_that_may_pass_is_told_and_tried_again() -> None:
    world = World()
    refusal = Rejection("Pod", "run-preflight-1", "exceeded quota: pods", final=False)
    done = world.reconcile(rejections=(refusal,))
    progressing = world.condition(ConditionType.PROGRESSING)
    assert progressing.status == "False"
    assert "exceeded quota: pods" in progressing.message
    assert done.requeue_after is not None
    assert world.condition(ConditionType.FAILED).status == "False"


def test_the_same_observation_gives_the_same_plan() -> None:
    world = World().to_training(step=4)
    assert world.plan() == world.plan()


def test_every_stage_comes_to_rest() -> None:
    world = World(trainer={"checkpoint": {"size": "1Gi"}}, model={"source": "hf://a/b", "storage": {"size": "1Gi"}})
    world.settle()
    world.preflight_ends()
    world.settle(5)
    world.servers_ready()
    world.settle(5)
    world.trainer_reports("training", 1)
    world.settle(5)
    world.trainer_ends(0)
    world.settle(5)
