"""Trainers of the user's own, by spec.trainer.command: in images of their own, by the wiring contract alone."""

import pytest

from tests.support.kubectl import Kubectl
from tests.support.runs import example, tiny_run

MINUTES = 60
pytestmark = pytest.mark.large


def test_a_trainer_without_torch_completes_a_run(operator: Kubectl, kubectl: Kubectl) -> None:
    run = example("trainers/minimal/run.yaml", "minimal-trainer")
    kubectl.apply(run)
    kubectl.wait_condition("minimal-trainer", "Complete", 12 * MINUTES)
    status = kubectl.get("gtr", "minimal-trainer")["status"]
    said = {one["type"]: one["message"] for one in status["conditions"]}
    assert "only it knows what it makes of spec.trainer.config" in said["PreflightPassed"]
    steps = run["spec"]["trainer"]["config"]["steps"]
    assert status["progress"]["step"] == status["progress"]["maxSteps"] == steps
    assert status["weightSync"]["transport"] == "HTTPFull"
    assert status["weightSync"]["version"] == f"minimal-trainer:1:{steps + 1}"


def test_trls_grpo_trainer_completes_a_run(operator: Kubectl, kubectl: Kubectl) -> None:
    run = example("trainers/grpo/run.yaml", "grpo-trainer")
    run["spec"]["model"] = tiny_run("x")["spec"]["model"]  # the example's own takes minutes to load and to train
    run["spec"]["trainer"]["config"] |= {"max_steps": 3, "save_steps": 2}
    kubectl.apply(run)
    kubectl.wait_condition("grpo-trainer", "Complete", 12 * MINUTES)
    progress = kubectl.get("gtr", "grpo-trainer")["status"]["progress"]
    assert progress["step"] == progress["maxSteps"] == 3
    assert progress["rollouts"] == 3 * 64
