"""Shapes of runs beside the main path: several environments, several trainer nodes."""

import json
from typing import Any

import yaml

from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import EXAMPLES, tiny_run

MINUTES = 60
_SAMPLES = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/samples').read().decode())"


def _agents_of_samples(kubectl: Kubectl, run: str) -> set[str]:
    """Agents whose answers the trainer has seen."""
    for pod in kubectl.pods(run, role="trainer"):
        text = kubectl.run(
            "exec", pod["metadata"]["name"], "-c", "trainer", "--", "python", "-c", _SAMPLES, check=False
        )
        if text:
            return {sample["agent"] for sample in json.loads(text)}
    return set()


def test_the_multi_environment_example_trains_on_both_environments(operator: Kubectl, kubectl: Kubectl) -> None:
    run: dict[str, Any] = yaml.safe_load((EXAMPLES / "multi-environment.yaml").read_text())
    run["spec"]["model"] = tiny_run("x")["spec"]["model"]  # the example's own takes minutes to load and to train
    run["spec"]["trainer"]["config"]["max_steps"] = 6
    kubectl.apply(run)
    both = {"reasoning_gym_simple_agent", "mcqa_simple_agent"}
    eventually(lambda: _agents_of_samples(kubectl, "multi-environment") == both, "samples of both agents", 8 * MINUTES)
    kubectl.wait_condition("multi-environment", "Complete", 5 * MINUTES)


def test_two_nodes_train_one_model(operator: Kubectl, kubectl: Kubectl) -> None:
    run = tiny_run("nodes", max_steps=3, per_device_train_batch_size=4)
    run["spec"]["trainer"]["nodes"] = 2
    del run["spec"]["trainer"]["checkpoint"]  # two nodes would need a volume that both can write to
    del run["spec"]["trainer"]["config"]["save_steps"]
    kubectl.apply(run)
    kubectl.wait_condition("nodes", "Complete", 8 * MINUTES)
    pods = kubectl.pods("nodes", role="trainer")
    assert len(pods) == 2
    lines = [line for pod in pods for line in kubectl.logs(pod["metadata"]["name"], "trainer").splitlines()]
    steps = [json.loads(line) for line in lines if line.startswith('{"event": "step"')]
    assert [step["step"] for step in steps] == [1, 2, 3], "rank 0 alone reports"
    assert {step["samples"] for step in steps} == {8}, "the batch is that of both nodes together"
