"""Preflight: first of all, and nothing else before it has passed."""

import pytest

from gymtrain_api import labels, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.times import to_text
from gymtrain_api.wiring import Finding, GymPreflight, InferencePreflight, TrainerPreflight
from gymtrain_operator.reconcile.observation import PreflightOutput
from tests.support.world import GYM_VERDICT, INFERENCE_VERDICT, TRAINER_VERDICT, World, applied, deleted


def test_a_new_run_gets_its_settings_its_fence_and_a_preflight_pod() -> None:
    world = World()
    done = world.reconcile()
    kinds = [name.split("/")[0] for name in applied(done)]
    assert kinds == ["ConfigMap", "NetworkPolicy", "NetworkPolicy", "NetworkPolicy", "Pod"]
    assert world.status.state == "Preflight"
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "Unknown"


def test_a_preflight_under_way_is_left_alone() -> None:
    world = World()
    world.reconcile()
    done = world.reconcile(5)
    assert applied(done) == []
    assert done.requeue_after is not None


def test_what_preflight_passed_is_kept_in_a_config_map() -> None:
    world = World().to_servers()
    verdict = world.observe(preflight_output=None).verdict
    assert verdict is not None
    assert verdict.gym == GYM_VERDICT
    assert world.status.preflight_hash == verdict.hash


@pytest.mark.parametrize(("last", "passed"), [(0, "True"), (1, "Unknown"), (None, "Unknown")])
@pytest.mark.parametrize("container", ["gym", "trainer", "inference"])
def test_a_verdict_counts_as_soon_as_all_containers_ended_well(container: str, last: int | None, passed: str) -> None:
    world = World()
    world.reconcile()
    world.preflight_ends()
    world.preflight_pod["status"] = {
        "phase": "Running",  # the kubelet tells another one a second later
        "containerStatuses": [
            _container(name, last if name == container else 0) for name in ("gym", "trainer", "inference")
        ],
    }
    world.reconcile()
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == passed


def test_a_run_that_is_only_to_be_checked_gets_no_servers() -> None:
    world = World()
    world.annotations[labels.PREFLIGHT_ONLY] = "true"
    world.reconcile()
    world.preflight_ends()
    world.reconcile()
    world.reconcile(60)
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "True"
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.PREFLIGHT_ONLY
    assert set(world.objects) <= {"ConfigMap", "NetworkPolicy", "Pod"}
    world.annotations.clear()
    world.reconcile()
    assert world.objects["Deployment"], "without the annotation it goes on"


def test_a_verdict_outlives_its_pod() -> None:
    world = World().to_servers()
    world.objects["Pod"].clear()
    world.seen.clear()
    done = world.reconcile()
    assert not [name for name in applied(done) if "preflight" in name]
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "True"


def test_a_run_under_way_whose_verdict_is_lost_keeps_its_attempt_while_preflight_runs_again() -> None:
    world = World().to_training(step=5)
    world.trainer_ends(1)
    world.reconcile(20)
    images, objects = world.status.images, world.objects
    del objects["ConfigMap"]["run-gym"], objects["Pod"][world.preflight_pod["metadata"]["name"]]
    del world.seen["preflight_output"]
    world.reconcile(5)
    assert world.status.state == "Preflight"
    assert world.status.attempt == 2
    assert world.status.progress is not None
    assert (world.status.progress.step, world.status.images) == (5, images)
    world.preflight_ends()
    world.reconcile(5)
    assert (world.status.attempt, world.existing("Job")) == (2, ["run-trainer-1", "run-trainer-2"])


def test_findings_of_all_images_end_the_run_before_any_other_pod() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(
        GYM_VERDICT.model_copy(update={"findings": [Finding(where="gym.configPaths[0]", message="no such file")]}),
        TRAINER_VERDICT.model_copy(update={"findings": [Finding(where="trainer.config.x", message="unknown key")]}),
        INFERENCE_VERDICT.model_copy(update={"findings": [Finding(where="inference.args[0]", message="no argument")]}),
    )
    world.settle(3)
    message = "gym.configPaths[0]: no such file\ntrainer.config.x: unknown key\ninference.args[0]: no argument"
    for kind, status in ((ConditionType.PREFLIGHT_PASSED, "False"), (ConditionType.FAILED, "True")):
        condition = world.condition(kind)
        assert (condition.status, condition.reason, condition.message) == (status, Reason.PREFLIGHT_FAILED, message)
    assert world.existing("Deployment") == world.existing("Job") == []
    assert world.status.state == "Failed"
    assert world.status.completion_time is not None


def test_a_failed_preflight_keeps_its_pod_for_the_log() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(gym=None)
    world.settle(3)
    assert len(world.existing("Pod")) == 1


def _unread(world: World) -> None:
    """Its containers ended well just now, and the node doesn't give the log of one."""
    world.preflight_ends()
    ended = {"terminated": {"exitCode": 0, "finishedAt": to_text(world.now)}}
    world.preflight_pod["status"]["containerStatuses"] = [{"name": "gym", "state": ended}]
    world.seen["preflight_output"] = PreflightOutput(None, TRAINER_VERDICT, INFERENCE_VERDICT, unread=("gym",))


def test_a_preflight_whose_log_is_lost_runs_again() -> None:
    world = World()
    world.reconcile()
    name = world.preflight_pod["metadata"]["name"]
    _unread(world)
    assert deleted(world.reconcile(30)) == []
    message = world.condition(ConditionType.PREFLIGHT_PASSED).message
    assert message == f"reading the verdict: the node doesn't give the log of container gym of pod {name}"
    assert deleted(world.reconcile(40)) == [f"Pod/{name}"]
    del world.seen["preflight_output"]
    world.reconcile(5)
    world.preflight_ends()
    world.reconcile(5)
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "True"


def test_preflights_whose_logs_are_all_lost_end_the_run_at_its_deadline() -> None:
    world = World(startupDeadlineSeconds=600)
    world.reconcile()
    for _ in range(8):
        _unread(world)
        if not deleted(world.reconcile(100)):
            break
        del world.seen["preflight_output"]
        world.reconcile(1)
    failed = world.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", Reason.PREFLIGHT_ERROR)
    assert "for 600 s (startupDeadlineSeconds) no verdict could be read" in failed.message
    assert "container gym of pod" in failed.message


@pytest.mark.parametrize(
    ("gym", "trainer", "inference", "container"),
    [
        (None, TRAINER_VERDICT, INFERENCE_VERDICT, "gym"),
        (GYM_VERDICT, None, INFERENCE_VERDICT, "trainer"),
        (GYM_VERDICT, TRAINER_VERDICT, None, "inference"),
    ],
)
def test_a_check_that_crashes_is_told_from_one_that_finds_something(
    gym: GymPreflight | None, trainer: TrainerPreflight | None, inference: InferencePreflight | None, container: str
) -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(gym, trainer, inference)
    ended = {"name": container, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    world.preflight_pod["status"]["containerStatuses"] = [ended]
    pod = world.preflight_pod["metadata"]["name"]
    world.seen["log_tails"] = {(pod, container): "reading the dataset\nKilled"}
    world.reconcile(3)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.PREFLIGHT_ERROR
    assert f"container {container} of the preflight pod ended with exit code 137 (OOMKilled)" in failed.message
    assert failed.message.endswith("reading the dataset\nKilled")


@pytest.mark.parametrize(
    ("end", "tail", "words"),
    [
        ({"exitCode": 1, "reason": "Error"}, "python: No module named gymtrain_vllm", "has no gymtrain_vllm"),
        (
            {"exitCode": 1, "reason": "Error"},
            "/opt/venv/bin/python: No module named gymtrain_vllm.preflight",
            "has no gymtrain_vllm.preflight",
        ),
        (
            {"exitCode": 128, "reason": "StartError", "message": 'exec: "python": executable file not found in $PATH'},
            "",
            "has no python",
        ),
    ],
)
def test_an_image_that_is_none_of_ours_is_said_to_be_none(end: dict[str, object], tail: str, words: str) -> None:
    world = World(inference={"image": "vllm/vllm-openai:v0.32.0"})
    world.reconcile()
    world.preflight_ends(inference=None)
    ended = {"name": "inference", "state": {"terminated": end}}
    world.preflight_pod["status"]["containerStatuses"] = [ended]
    world.seen["log_tails"] = {(world.preflight_pod["metadata"]["name"], "inference"): tail} if tail else {}
    world.reconcile(3)
    message = world.condition(ConditionType.FAILED).message
    assert f"its image {words}. Build the image of spec.inference.image from gymtrain's" in message


def test_a_crash_for_another_reason_says_nothing_of_the_image() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(inference=None)
    end = {"exitCode": 1, "reason": "Error"}
    world.preflight_pod["status"]["containerStatuses"] = [{"name": "inference", "state": {"terminated": end}}]
    pod = world.preflight_pod["metadata"]["name"]
    world.seen["log_tails"] = {(pod, "inference"): "ModuleNotFoundError: No module named 'gym'"}
    world.reconcile(3)
    assert "spec.inference.image" not in world.condition(ConditionType.FAILED).message


def test_an_init_container_that_fails_is_named() -> None:
    world = World(model={"source": "oci://image"})
    world.reconcile()
    world.preflight_ends(None, None)
    ended = {"name": "model", "state": {"terminated": {"exitCode": 1, "message": "cp: cannot stat '/models/.'"}}}
    world.preflight_pod["status"]["initContainerStatuses"] = [ended]
    world.reconcile(3)
    message = world.condition(ConditionType.FAILED).message
    assert "container model of the preflight pod ended with exit code 1" in message
    assert "cannot stat '/models/.'" in message
    assert message.count("container model") == 1


def test_a_mended_spec_gets_another_preflight() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(GYM_VERDICT.model_copy(update={"findings": [Finding(where="a", message="b")]}))
    world.settle(3)
    failed_pod = world.preflight_pod["metadata"]["name"]
    world.change(gym={"configPaths": ["right.yaml"]})
    world.seen.clear()
    done = world.reconcile(60)
    assert deleted(done) == [f"Pod/{failed_pod}"]
    assert world.preflight_pod["metadata"]["name"] != failed_pod
    assert world.condition(ConditionType.FAILED).status == "False"
    assert world.status.state == "Preflight"
    assert world.status.completion_time is None


def test_a_failed_run_whose_spec_stays_the_same_stays_failed() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(gym=None)
    world.settle(3)
    done = world.reconcile(1000)
    assert applied(done) == deleted(done) == []
    assert world.status.state == "Failed"


def test_a_missing_claim_is_named_before_any_pod_exists() -> None:
    world = World(data={"train": [{"source": "pvc://nowhere/rows.jsonl"}]})
    missing = "spec.data.train[0].source: PersistentVolumeClaim nowhere not found in namespace ns"
    done = world.reconcile(missing=(missing,))
    assert applied(done) == []
    condition = world.condition(ConditionType.PREFLIGHT_PASSED)
    assert (condition.status, condition.message) == ("False", missing)
    assert world.condition(ConditionType.FAILED).status == "False"


def test_a_missing_claim_may_come_a_little_late() -> None:
    world = World(data={"train": [{"source": "pvc://late/rows.jsonl"}]})
    world.reconcile(missing=("late is missing",))
    world.reconcile(30, missing=("late is missing",))
    world.reconcile(10)
    assert len(world.existing("Pod")) == 1
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "Unknown"


def test_a_claim_that_stays_missing_fails_the_run() -> None:
    world = World(data={"train": [{"source": "pvc://nowhere/rows.jsonl"}]})
    world.reconcile(missing=("nowhere is missing",))
    world.reconcile(61, missing=("nowhere is missing",))
    assert world.condition(ConditionType.FAILED).message == "nowhere is missing"
    assert world.existing("Pod") == []


def test_a_preflight_that_can_not_start_says_why_and_fails_at_the_deadline() -> None:
    world = World(startupDeadlineSeconds=100)
    world.reconcile()
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    world.preflight_pod["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "gym", "state": {"waiting": waiting}}],
    }
    world.reconcile(90)
    assert "ImagePullBackOff: not found" in world.condition(ConditionType.PREFLIGHT_PASSED).message
    assert world.condition(ConditionType.FAILED).status == "False"
    done = world.reconcile(20)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.PREFLIGHT_ERROR
    assert "100 s" in failed.message
    assert "check the image's name" in failed.message
    assert [name for name in deleted(done) if "preflight" in name], "a pod that never ran would start later"


def test_an_evicted_preflight_pod_is_made_again() -> None:
    world = World()
    world.reconcile()
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    world.preflight_pod["status"] = {"phase": "Failed", "reason": "Evicted", "conditions": disrupted}
    world.reconcile(5)
    assert world.existing("Pod") == []
    world.reconcile(1)
    assert len(world.existing("Pod")) == 1
    assert world.condition(ConditionType.FAILED).status == "False"


def test_live_settings_need_no_new_preflight() -> None:
    world = World().to_servers()
    pod = world.preflight_pod["metadata"]["name"]
    world.change(backoffLimit=9, inference={"replicas": 3}, trainer={"resources": {"requests": {"cpu": "1"}}})
    world.reconcile(5)
    assert names.preflight("run", world.status.preflight_hash or "") == pod
    assert world.condition(ConditionType.PREFLIGHT_PASSED).status == "True"


def test_a_change_that_slipped_past_the_api_server_does_not_reach_the_pods() -> None:
    world = World(trainer={"config": {"max_steps": 5}}).to_servers()
    world.change(trainer={"config": {"max_stepz": 5}}, inference={"replicas": 2})
    world.reconcile(5)
    config = world.objects["ConfigMap"]["run-run"]["data"]["run.json"]
    assert "max_stepz" not in config
    assert world.objects["Deployment"]["run-inference"]["spec"]["replicas"] == 2, "live settings still count"
    assert "spec.trainer.config changed after" in world.condition(ConditionType.PREFLIGHT_PASSED).message


def _container(name: str, exit_code: int | None) -> dict[str, object]:
    state = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
    return {"name": name, "state": state}
