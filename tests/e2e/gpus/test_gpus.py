"""Runs on GPUs: vLLM's Deployment and the training Job each with nvidia.com/gpu, for every weight transport, and
through what a run has to survive.

`make test-gpus`, on a cluster whose nodes have GPUs and whose chart names the images for them. Where pods share one GPU
in turns (GYMTRAIN_SHARED_GPU=1), NCCL has nothing to connect: it takes one rank a GPU.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import (
    MINUTES,
    assert_no_wrong_sample,
    kill_at,
    pod_of,
    step,
    trainer_events,
    wait_for_steps,
)
from tests.support.gpu_runs import gpu_run, gpu_run_with_tools
from tests.support.kubectl import Kubectl, eventually

pytestmark = pytest.mark.gpu

SHARED = os.environ.get("GYMTRAIN_SHARED_GPU") == "1"
TRANSPORT = "HTTPFull" if SHARED else "NCCL"
"""What the tests use that aren't about transports."""


def _start(kubectl: Kubectl, run: dict[str, Any]) -> None:
    kubectl.apply(run)
    name = run["metadata"]["name"]
    eventually(lambda: step(kubectl, name) >= 2, "two steps are done", 5 * MINUTES)


def _finish(kubectl: Kubectl, name: str, attempts: int = 1, *, checked: bool = True) -> None:
    kubectl.wait_condition(name, "Complete", 5 * MINUTES)
    assert kubectl.get("gymtrainingrun", name)["status"]["attempt"] <= attempts
    if checked:
        assert_no_wrong_sample(kubectl, name)


def _reward(kubectl: Kubectl, name: str, steps: slice) -> float:
    rewards = [line["reward"] for line in trainer_events(kubectl, name, "step")][steps]
    return float(sum(rewards) / len(rewards))


def _dead_that_hold_memory() -> list[str]:
    """Processes that are gone and still hold memory of a GPU of this machine, if it is the node: pid and MiB."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    held = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [line for line in held if not Path("/proc", line.partition(",")[0]).exists()]


@pytest.mark.parametrize("transport", ["NCCL", "HTTPFull", "LoRAFilesystem"])
def test_a_run_trains_on_gpus_to_its_end(operator: Kubectl, kubectl: Kubectl, transport: str) -> None:
    if transport == "NCCL" and SHARED:
        pytest.skip("NCCL takes one rank a GPU, and this machine has one")
    # An adapter of so low a rank learns at a higher rate, and needs more steps.
    settings = {"learning_rate": 1e-3, "max_steps": 40} if transport == "LoRAFilesystem" else {"max_steps": 30}
    _start(kubectl, gpu_run("main", transport, **settings))

    for role in ("inference", "trainer"):
        pod = pod_of(kubectl, "main", role=role)
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        listed = kubectl.run("exec", pod["metadata"]["name"], "-c", role, "--", "nvidia-smi", "-L")
        assert listed.count("UUID: GPU-") == 1, listed
    log = kubectl.logs(pod_of(kubectl, "main", role="inference")["metadata"]["name"], "inference")
    assert "Graph capturing finished" in log, "CUDA graphs are on"

    # Of an adapter, the weights that are sent make no model by themselves: the parity check has to do.
    _finish(kubectl, "main", checked=transport != "LoRAFilesystem")
    status = kubectl.get("gymtrainingrun", "main")["status"]
    assert status["weightSync"]["transport"] == transport
    assert _reward(kubectl, "main", slice(-5, None)) > _reward(kubectl, "main", slice(0, 3)) + 0.1


def test_a_run_with_tools_trains_on_gpus(operator: Kubectl, kubectl: Kubectl) -> None:
    _start(kubectl, gpu_run_with_tools("tools", TRANSPORT))
    # A grammar may hold calls with tools, and the log-probabilities of such an answer can't be computed again.
    _finish(kubectl, "tools", checked=False)
    for line in trainer_events(kubectl, "tools", "step"):
        assert line["kl"] < 0.05, line
        assert line["ratio"] == pytest.approx(1.0, abs=0.05), line


def test_verify_mode_trains_on_gpus(operator: Kubectl, kubectl: Kubectl) -> None:
    run = gpu_run("verify", TRANSPORT, max_steps=10)
    run["spec"]["rollout"]["mode"] = "Verify"
    _start(kubectl, run)
    _finish(kubectl, "verify")


def test_a_suspended_run_gives_its_gpus_back_and_goes_on(operator: Kubectl, kubectl: Kubectl) -> None:
    run = gpu_run("rest", TRANSPORT, max_steps=30, save_steps=5)
    run["spec"]["inference"]["compileCache"] = {"size": "2Gi"}
    _start(kubectl, run)
    eventually(lambda: step(kubectl, "rest") >= 7, "there is a checkpoint", 2 * MINUTES)
    log = kubectl.logs(pod_of(kubectl, "rest", role="inference")["metadata"]["name"], "inference")
    assert "torch.compile took" in log
    assert "Directly load" not in log

    kubectl.run("patch", "gtr", "rest", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    eventually(lambda: not kubectl.pods("rest"), "no pod is left", 2 * MINUTES)
    kubectl.run("patch", "gtr", "rest", "--type=merge", "-p", '{"spec": {"suspend": false}}')

    eventually(lambda: step(kubectl, "rest") >= 8, "it trains again", 5 * MINUTES)
    log = kubectl.logs(pod_of(kubectl, "rest", role="inference")["metadata"]["name"], "inference")
    assert "Directly load" in log, "what was compiled is kept from one pod to the next"
    _finish(kubectl, "rest", attempts=2)
    steps = [line["step"] for line in trainer_events(kubectl, "rest", "step")]
    assert steps[-1] == 30
    assert 1 not in steps, "it went on from a checkpoint"


@pytest.mark.parametrize(("role", "word"), [("inference", "VLLM::EngineCore"), ("trainer", "gymtrain_trainer")])
def test_a_killed_part_leaves_no_memory_of_the_gpu_behind(
    operator: Kubectl, kubectl: Kubectl, role: str, word: str
) -> None:
    _start(kubectl, gpu_run("kill", TRANSPORT, max_steps=60, save_steps=5))
    eventually(lambda: step(kubectl, "kill") >= 7, "there is a checkpoint", 2 * MINUTES)

    kill_at(kubectl, "kill", "generating", role, word)

    wait_for_steps(kubectl, "kill", 5, f"{word} was killed")
    assert _dead_that_hold_memory() == []
    _finish(kubectl, "kill", attempts=2)
