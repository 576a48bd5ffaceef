"""Every part of a run is broken while it trains; each run finishes and was trained on no wrong sample.

Takes about half an hour, so `make test` runs a selection (tests/e2e/runs/test_faults.py) and `make test-faults` all.
"""

import os
import time

import pytest

from gymtrain_api.pods import condition
from tests.support.chaos import add_chaos, set_chaos
from tests.support.faults import (
    MINUTES,
    Moment,
    assert_no_wrong_sample,
    checked_run,
    kill_at,
    kill_pod,
    pod_of,
    post_to_vllm,
    scale,
    step,
    trainer_events,
    wait_for_steps,
)
from tests.support.kubectl import Kubectl, eventually

pytestmark = pytest.mark.faults

OPERATOR_AWAY_SECONDS = float(os.environ.get("GYMTRAIN_OPERATOR_AWAY", "300"))
DNS_AWAY_SECONDS = 60.0


def _start(kubectl: Kubectl, name: str, **trainer_config: object) -> None:
    kubectl.apply(checked_run(name, **trainer_config))
    eventually(lambda: step(kubectl, name) >= 2, "two steps are done", 8 * MINUTES)


def _finish(kubectl: Kubectl, name: str, attempts: int = 1, minutes: float = 10) -> None:
    kubectl.wait_condition(name, "Complete", minutes * MINUTES)
    assert kubectl.get("gymtrainingrun", name)["status"]["attempt"] <= attempts
    assert_no_wrong_sample(kubectl, name)


def test_vllm_killed_while_it_generates_while_it_is_idle_and_during_an_update(
    operator: Kubectl, kubectl: Kubectl
) -> None:
    _start(kubectl, "vllm", max_steps=400)
    kill_pod(kubectl, "vllm", role="inference")
    wait_for_steps(kubectl, "vllm", 5, "vLLM's pod was lost")
    moments: tuple[Moment, ...] = ("generating", "idle", "updating")
    for moment in moments:
        kill_at(kubectl, "vllm", moment, "inference", "gymtrain_vllm")
        wait_for_steps(kubectl, "vllm", 5, f"vLLM was killed while {moment}")
    _finish(kubectl, "vllm", attempts=2)


_ANSWERED = """
import urllib.request
lines = urllib.request.urlopen("http://127.0.0.1:8000/metrics", timeout=30).read().decode().splitlines()
print(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total")))
"""


def test_a_server_that_kubectl_scale_adds_answers_and_goes_again(operator: Kubectl, kubectl: Kubectl) -> None:
    _start(kubectl, "scaled", max_steps=400)
    first = pod_of(kubectl, "scaled", role="inference")["metadata"]["name"]
    kubectl.run("scale", "gtr/scaled", "--replicas=2")

    def second() -> str:
        """The other server, once it has the run's weights."""
        for pod in kubectl.pods("scaled", role="inference"):
            if condition(pod, "Ready").get("status") == "True" and pod["metadata"]["name"] != first:
                return str(pod["metadata"]["name"])
        return ""

    name = eventually(second, "the second server is ready", 4 * MINUTES)
    answered = ("exec", name, "-c", "inference", "--", "python", "-S", "-c", _ANSWERED)
    eventually(lambda: float(kubectl.run(*answered)) > 10, "it answers calls", 2 * MINUTES)
    assert kubectl.get("gymtrainingrun", "scaled")["status"]["inference"]["replicas"] == 2

    kubectl.run("scale", "gtr/scaled", "--replicas=1")
    eventually(lambda: len(kubectl.pods("scaled", role="inference")) == 1, "one of them goes", 2 * MINUTES)
    wait_for_steps(kubectl, "scaled", 5, "a server went")
    _finish(kubectl, "scaled")


def test_vllm_paused_and_left_alone(operator: Kubectl, kubectl: Kubectl) -> None:
    _start(kubectl, "paused", max_steps=200)
    post_to_vllm(kubectl, "paused", "/pause?mode=keep")
    wait_for_steps(kubectl, "paused", 5, "somebody paused vLLM")
    _finish(kubectl, "paused")


def _goes_on_from_a_checkpoint(kubectl: Kubectl, name: str, moment: Moment, word: str) -> None:
    """A process of the trainer's pod is killed: the second attempt goes on."""
    _start(kubectl, name, max_steps=200, save_steps=5)
    eventually(lambda: step(kubectl, name) >= 7, "there is a checkpoint", 4 * MINUTES)
    kill_at(kubectl, name, moment, "trainer", word)
    _finish(kubectl, name, attempts=2)
    assert kubectl.get("gymtrainingrun", name)["status"]["attempt"] == 2
    steps = [line["step"] for line in trainer_events(kubectl, name, "step")]
    assert steps.count(3) == 1, "the second attempt went on from a checkpoint"


def test_the_trainer_killed_during_an_update(operator: Kubectl, kubectl: Kubectl) -> None:
    _goes_on_from_a_checkpoint(kubectl, "trainer", "updating", "gymtrain_trainer")


def test_the_rollouts_process_killed(operator: Kubectl, kubectl: Kubectl) -> None:
    _goes_on_from_a_checkpoint(kubectl, "rollouts", "generating", "gymtrain_trainer.rollouts.process")


def test_gateway_and_gym_servers_killed(operator: Kubectl, kubectl: Kubectl) -> None:
    _start(kubectl, "servers", max_steps=400)
    kill_pod(kubectl, "servers", role="gateway")
    wait_for_steps(kubectl, "servers", 4, "the gateway was lost")
    for server in ("reasoning_gym_simple_agent", "reasoning_gym", "policy_model"):
        kill_pod(kubectl, "servers", role="gym", server=server)
        wait_for_steps(kubectl, "servers", 4, f"{server} was lost")
    _finish(kubectl, "servers")


def test_a_resources_server_that_misbehaves_never_becomes_a_reward(operator: Kubectl, kubectl: Kubectl) -> None:
    run = checked_run("chaos", max_steps=400)
    run["spec"]["rollout"] |= {"timeoutSeconds": 15, "maxAttempts": 2}
    kubectl.apply(add_chaos(run, "reasoning_gym"), run)
    eventually(lambda: step(kubectl, "chaos") >= 2, "two steps are done", 8 * MINUTES)
    for mode in ("error", "garbage", "hang"):
        set_chaos(kubectl, "chaos", "reasoning_gym", mode)
        eventually(
            lambda: kubectl.condition("chaos", "Progressing").get("reason") == "RolloutsFailing",
            f"the run says that rollouts fail ({mode})",
            3 * MINUTES,
        )
        stuck = step(kubectl, "chaos")
        time.sleep(10)
        assert step(kubectl, "chaos") <= stuck + 1, "no step is made of rollouts that failed"
        set_chaos(kubectl, "chaos", "reasoning_gym", "")
        wait_for_steps(kubectl, "chaos", 3, f"the server is well again after {mode}")
    set_chaos(kubectl, "chaos", "reasoning_gym", "slow")
    wait_for_steps(kubectl, "chaos", 2, "the server became slow")
    set_chaos(kubectl, "chaos", "reasoning_gym", "")
    _finish(kubectl, "chaos")


def test_dns_gone_for_a_minute(operator: Kubectl, kubectl: Kubectl) -> None:
    _start(kubectl, "dns", max_steps=300)
    scale(kubectl, "kube-system", "coredns", 0)
    try:
        time.sleep(DNS_AWAY_SECONDS)
    finally:
        scale(kubectl, "kube-system", "coredns", 1)
    wait_for_steps(kubectl, "dns", 5, "DNS is back")
    _finish(kubectl, "dns", attempts=2)


def test_the_operator_away(operator: Kubectl, kubectl: Kubectl) -> None:
    # Up to 10 steps a second: it still trains when the operator comes back.
    _start(kubectl, "away", max_steps=int(10 * OPERATOR_AWAY_SECONDS) + 100)
    at = step(kubectl, "away")
    scale(kubectl, "gymtrain-system", "gymtrain-operator", 0)
    try:
        time.sleep(OPERATOR_AWAY_SECONDS)
    finally:
        scale(kubectl, "gymtrain-system", "gymtrain-operator", 1)
    eventually(lambda: step(kubectl, "away") > at + OPERATOR_AWAY_SECONDS / 10, "training went on", 2 * MINUTES)
    assert kubectl.get("gymtrainingrun", "away")["status"]["attempt"] == 1
    assert_no_wrong_sample(kubectl, "away")


def test_a_full_disk_at_a_checkpoint_costs_that_checkpoint(operator: Kubectl, kubectl: Kubectl) -> None:
    run = checked_run("disk", max_steps=200, save_steps=20)
    pod = run["spec"]["trainer"]["template"]["spec"]
    pod["volumes"] = [{"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "small", "mountPath": "/gymtrain/checkpoints/checkpoint-20"}]
    kubectl.apply(run)
    eventually(
        lambda: kubectl.condition("disk", "Healthy").get("reason") == "CheckpointFailed",
        "the run says that a checkpoint could not be written",
        8 * MINUTES,
        every=0.5,
    )
    _finish(kubectl, "disk")
    assert kubectl.condition("disk", "Healthy")["status"] == "True", "the next checkpoint could be written"


ADAPTER = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def test_an_adapter_on_the_shared_volume_outlives_its_server(operator: Kubectl, kubectl: Kubectl) -> None:
    run = checked_run("adapter", max_steps=200)
    run["spec"]["model"]["lora"] = ADAPTER
    run["spec"]["weightSync"] = {"parityEverySyncs": 5}
    kubectl.apply(run)
    eventually(lambda: step(kubectl, "adapter") >= 5, "five steps are done", 8 * MINUTES)
    status = kubectl.get("gymtrainingrun", "adapter")["status"]
    assert status["weightSync"]["transport"] == "LoRAFilesystem", status["weightSync"]
    kill_pod(kubectl, "adapter", role="inference")
    wait_for_steps(kubectl, "adapter", 10, "vLLM was lost with all its adapters")
    kubectl.wait_condition("adapter", "Complete", 10 * MINUTES)
    status = kubectl.get("gymtrainingrun", "adapter")["status"]
    assert (status["attempt"], status["progress"]["step"]) == (1, 200)
    for line in trainer_events(kubectl, "adapter", "step"):
        assert all(version.startswith("adapter:1:") for version in line["weight_versions"]), line


def test_merged_weights_of_which_most_never_change_outlive_their_server(operator: Kubectl, kubectl: Kubectl) -> None:
    """Only what the adapter is merged into is sent again; a server that was started anew gets everything."""
    run = checked_run("merged", max_steps=200)
    run["spec"]["model"]["lora"] = ADAPTER
    run["spec"]["weightSync"] = {"transport": "HTTPFull", "parityEverySyncs": 5}
    kubectl.apply(run)
    eventually(lambda: step(kubectl, "merged") >= 8, "eight steps are done", 8 * MINUTES)
    kill_pod(kubectl, "merged", role="inference")
    wait_for_steps(kubectl, "merged", 8, "vLLM's pod was lost")
    code = "import glob; print(len(glob.glob('/gymtrain/scratch/tmp/gymtrain-kept-*/*.safetensors')))"
    pod = pod_of(kubectl, "merged", role="inference")["metadata"]["name"]
    kept = kubectl.run("exec", pod, "-c", "inference", "--", "python", "-S", "-c", code)
    assert int(kept) > 0, "what doesn't change is kept by the pod"
    _finish(kubectl, "merged")
