"""A trainer that the cluster takes away (eviction, preemption, node shutdown) has not failed."""

import json
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import MAX_DISRUPTED_ATTEMPTS
from gymtrain_api.times import to_text
from tests.support.world import World, applied

TARGET = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "node drain"}


def _pod_marked(world: World, **status: Any) -> None:
    """The cluster marks the trainer's pod before it ends it."""
    attempt = str(world.status.attempt or 1)
    marked = {"phase": "Running", "conditions": [TARGET], **status}
    world.add_pod(f"run-trainer-{attempt}-0-abcde", labels.Role.TRAINER, marked, **{labels.ATTEMPT: attempt})


def _job_fails(world: World, reason: str = "PodFailurePolicy", message: str = "Pod has DisruptionTarget") -> None:
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    world.job["status"] = {"conditions": [failed | {"lastTransitionTime": to_text(world.now)}]}
    world.seen.pop("progress", None)


def _lost(world: World) -> None:
    """One attempt ends by the cluster's doing, and the next one starts."""
    world.objects["Pod"] = {}
    _job_fails(world)
    world.reconcile(1)
    world.reconcile(11)


def test_an_eviction_does_not_count_against_the_limit() -> None:
    world = World(backoffLimit=0).to_training()
    world.objects["Pod"] = {}
    _job_fails(world)
    world.reconcile(1)
    assert world.status.state == "Retrying"
    assert world.status.disrupted_attempts == [1]
    message = world.condition(ConditionType.PROGRESSING).message
    assert "the cluster ended attempt 1, which doesn't count against backoffLimit, the next starts at" in message
    assert applied(world.reconcile(11)) == ["Job/run-trainer-2"]
    assert world.status.attempt == 2


def test_the_next_failure_of_its_own_counts() -> None:
    world = World(backoffLimit=0).to_training()
    _lost(world)
    world.trainer_ends(1, tail="boom")
    world.reconcile(5)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert "all 1 attempts failed (backoffLimit 0), and the cluster ended 1 more" in failed.message


def test_a_mark_seen_before_the_end_is_enough() -> None:
    """Of several nodes another one's error ends the Job first, and the evicted pod is gone by then."""
    world = World(backoffLimit=0, trainer={"nodes": 2}).to_training()
    _pod_marked(world)
    world.reconcile(2)
    assert world.status.disrupted_attempts == [1]
    world.objects["Pod"] = {}
    _job_fails(world, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    world.reconcile(2)
    assert world.status.state == "Retrying"


def test_what_the_cluster_did_is_quoted() -> None:
    world = World().to_training()
    _pod_marked(world, phase="Failed")
    _job_fails(world)
    world.reconcile(1)
    message = world.condition(ConditionType.PROGRESSING).message
    assert "pod run-trainer-1-0-abcde: EvictionByEvictionAPI: node drain" in message


def test_a_lost_status_write_changes_nothing() -> None:
    world = World(backoffLimit=0).to_training()
    before = world.status
    _job_fails(world)
    world.reconcile(1)
    world.status = before
    world.reconcile(1)
    assert world.status.disrupted_attempts == [1]
    world.reconcile(1)
    assert world.status.disrupted_attempts == [1], "counted once"


def test_a_refusal_is_final_even_on_a_node_that_goes() -> None:
    world = World().to_training()
    world.trainer_ends(78, json.dumps({"phase": "failed", "message": "no"}))
    next(iter(world.objects["Pod"].values()))["status"]["conditions"] = [TARGET]
    world.reconcile(5)
    assert world.condition(ConditionType.FAILED).reason == Reason.TRAINER_REFUSED


def _on_a_dead_node(world: World, rank: int = 0) -> None:
    """The node lost its power; after some minutes the cluster takes its pods away, and nobody says that they ended."""
    attempt = str(world.status.attempt or 1)
    name = f"run-trainer-{attempt}-{rank}-abcde"
    world.add_pod(
        name,
        labels.Role.TRAINER,
        {"phase": "Running", "conditions": [TARGET]},
        **{labels.ATTEMPT: attempt, "batch.kubernetes.io/job-completion-index": str(rank)},
    )
    pod = world.objects["Pod"][name]
    pod["metadata"]["deletionTimestamp"] = to_text(world.now + 30)
    pod["spec"] = {"nodeName": "gpu-7"}


def _says_what_to_do(world: World) -> bool:
    progressing = world.condition(ConditionType.PROGRESSING)
    wanted = (
        "-abcde should have ended",
        "kubectl delete node gpu-7",
        "kubectl taint node gpu-7 node.kubernetes.io/out-of-s",
    )
    return progressing.status == "False" and all(words in progressing.message for words in wanted)


def test_a_trainer_on_a_dead_node_is_told_with_the_remedy() -> None:
    world = World().to_training(step=4)
    _on_a_dead_node(world)
    world.seen.pop("progress")
    world.reconcile(60)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINING, "the kubelet gets time to tell"
    world.reconcile(60)
    assert world.status.state == "Retrying"
    assert _says_what_to_do(world)
    assert world.condition(ConditionType.FAILED).status == "False"
    assert world.reconcile(60).events == (), "it is said once"

    world.objects["Pod"] = {}  # the Node object was deleted
    _job_fails(world)
    world.reconcile(1)
    assert applied(world.reconcile(11)) == ["Job/run-trainer-2"]
    assert world.status.disrupted_attempts == [1]


def test_of_several_nodes_a_dead_one_is_told_though_the_first_still_reports() -> None:
    world = World(trainer={"nodes": 2}).to_training(step=4)
    _on_a_dead_node(world, rank=1)
    world.reconcile(120)
    assert _says_what_to_do(world)
    assert world.status.progress is not None
    assert world.status.progress.step == 4


def test_a_trainer_on_a_dead_node_keeps_the_next_one_waiting_and_is_named() -> None:
    world = World().to_training(step=4)
    _on_a_dead_node(world)
    world.seen.pop("progress")
    world.job["metadata"]["deletionTimestamp"] = to_text(world.now)
    world.reconcile(120)
    assert _says_what_to_do(world)


def test_a_pod_that_has_ended_in_time_is_not_on_a_dead_node() -> None:
    world = World().to_training(step=4)
    _on_a_dead_node(world)
    world.objects["Pod"]["run-trainer-1-0-abcde"]["status"]["phase"] = "Failed"
    world.seen.pop("progress")
    world.reconcile(120)
    assert not _says_what_to_do(world)


def test_disruptions_are_kept_over_a_suspension() -> None:
    world = World().to_training()
    _lost(world)
    world.change(suspend=True)
    world.reconcile(5)
    assert world.status.disrupted_attempts == [1]


def test_pauses_grow_with_failures_only() -> None:
    world = World(backoffLimit=9).to_training()
    for _ in range(4):
        _lost(world)
    assert world.status.attempt == 5
    world.trainer_ends(1)
    assert world.reconcile().requeue_after == pytest.approx(10)


def test_a_run_that_always_loses_its_pods_ends_some_day() -> None:
    world = World(backoffLimit=0).to_training()
    known = list(range(1, MAX_DISRUPTED_ATTEMPTS + 1))
    world.status = world.status.model_copy(update={"disrupted_attempts": known, "attempt": len(known) + 1})
    world.reconcile(1)
    world.objects["Pod"] = {}
    _job_fails(world)
    world.reconcile(1)
    assert world.condition(ConditionType.FAILED).reason == Reason.BACKOFF_LIMIT_EXCEEDED


def test_a_drain_takes_one_vllm_server_at_a_time() -> None:
    world = World(inference={"replicas": 3}).to_servers()
    assert world.existing("PodDisruptionBudget") == ["run-inference"]
    spec = world.objects["PodDisruptionBudget"]["run-inference"]["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    pods = world.objects["Deployment"]["run-inference"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= pods.items()


def test_nobody_ends_a_trainer_or_a_vllm_server_to_save_a_node() -> None:
    world = World().to_servers()
    for manifest in (world.job, world.objects["Deployment"]["run-inference"]):
        annotations = manifest["spec"]["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    gateway = world.objects["Deployment"]["run-gateway"]["spec"]["template"]["metadata"]["annotations"]
    assert "cluster-autoscaler.kubernetes.io/safe-to-evict" not in gateway


def test_a_template_may_let_an_autoscaler_have_the_node() -> None:
    own = {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}}
    world = World(trainer={"template": own}).to_servers()
    annotations = world.job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
