"""Shapes of runs beside the main path: several environments, several trainer nodes, rollouts without agents."""

import json

from tests.support.faults import trainer_events
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import example, tiny_run

MINUTES = 60
_SAMPLES = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/samples').read().decode())"


def _status(kubectl: Kubectl, pod: str, url: str) -> str:
    """What a GET from inside a Gym server's pod ends in: the HTTP status, or the error's name."""
    code = f"""
import urllib.request
try:
    print(urllib.request.urlopen({url!r}, timeout=5).status)
except Exception as error:
    print(type(error).__name__)
"""
    return kubectl.run("exec", pod, "-c", "gym", "--", "python", "-S", "-c", code).strip()


def _answer_length(kubectl: Kubectl, pod: str, gateway: str, most: int) -> int:
    """Tokens of an answer that nothing but `most` ends, asked for from a Gym server's pod."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "a"}], "max_tokens": most, "ignore_eos": True}
    code = f"""
import json, urllib.request
request = urllib.request.Request({gateway!r}, {json.dumps(body).encode()!r}, {{"Content-Type": "application/json"}})
print(json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"])
"""
    return int(kubectl.run("exec", pod, "-c", "gym", "--", "python", "-S", "-c", code))


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
    run = example("multi-environment.yaml", "multi-environment")
    run["spec"]["model"] = tiny_run("x")["spec"]["model"]  # the example's own takes minutes to load and to train
    run["spec"]["trainer"]["config"]["max_steps"] = 40  # so that it trains while its pods are looked at
    run["spec"]["rollout"]["maxConcurrent"] = 2
    kubectl.apply(run)
    both = {"reasoning_gym_simple_agent", "mcqa_simple_agent"}
    eventually(lambda: _agents_of_samples(kubectl, "multi-environment") == both, "samples of both agents", 8 * MINUTES)

    # A Gym server runs others' code: it reaches the gateway, and neither vLLM's control routes nor the trainer.
    agent = kubectl.pods("multi-environment", role="gym", server="mcqa_simple_agent")[0]["metadata"]["name"]
    gateway = "http://multi-environment-gateway:8000"
    assert _status(kubectl, agent, f"{gateway}/health") == "200"
    # vLLM's own default is 16: it leaves that out where it renders, and takes what is missing for all that fits.
    for most in (16, 17):
        assert _answer_length(kubectl, agent, f"{gateway}/v1/chat/completions", most) == most
    for closed in ("inference-pods:8000/health", "inference:8000/health", "trainer:8080/healthz"):
        assert "Error" in _status(kubectl, agent, f"http://multi-environment-{closed}"), f"{closed} is open"

    kubectl.wait_condition("multi-environment", "Complete", 12 * MINUTES)


def test_two_nodes_train_one_model_in_mode_verify_without_agents(operator: Kubectl, kubectl: Kubectl) -> None:
    # One run for both: a second one would cost the ring two minutes, and neither touches what the other shows.
    run = tiny_run("nodes", max_steps=3, per_device_train_batch_size=4)
    run["spec"]["rollout"]["mode"] = "Verify"
    run["spec"]["trainer"]["nodes"] = 2
    del run["spec"]["trainer"]["checkpoint"]  # two nodes would need a volume that both can write to
    del run["spec"]["trainer"]["config"]["save_steps"]
    kubectl.apply(run)

    # Not until they are ready: three steps need only one of them, and can be over before the last one is up.
    def servers() -> set[str]:
        return {pod["metadata"]["labels"]["gymtrain.dev/server"] for pod in kubectl.pods("nodes", role="gym")}

    expected = {"head_server", "policy_model", "reasoning_gym"}
    eventually(lambda: servers() == expected, f"the Gym servers are {expected}", 8 * MINUTES)
    kubectl.wait_condition("nodes", "Complete", 8 * MINUTES)
    assert len(kubectl.pods("nodes", role="trainer")) == 2
    steps = trainer_events(kubectl, "nodes", "step")
    assert [step["step"] for step in steps] == [1, 2, 3], "rank 0 alone reports"
    assert {step["samples"] for step in steps} == {8}, "the batch is that of both nodes together"
