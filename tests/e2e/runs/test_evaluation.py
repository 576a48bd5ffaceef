"""A run that is evaluated while it trains, greedily, with its own real gateway and vLLM."""

import json

from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import example

MINUTES = 60


def test_a_run_is_evaluated_at_every_second_step_and_each_score_has_its_weights(
    operator: Kubectl, kubectl: Kubectl
) -> None:
    kubectl.apply(example("evaluation.yaml", "evaluation"))
    kubectl.wait_condition("evaluation", "Complete", 10 * MINUTES)
    progress = kubectl.get("gymtrainingrun", "evaluation")["status"]["progress"]
    pod = kubectl.pods("evaluation", role="trainer")[0]["metadata"]["name"]
    lines = [json.loads(line) for line in kubectl.logs(pod, "trainer").splitlines() if line.startswith('{"event"')]
    scores = [line for line in lines if line["event"] == "evaluation"]
    assert [line["step"] for line in scores] == [0, 2, 4]
    assert [line["version"] for line in scores] == [f"evaluation:1:{number}" for number in (1, 3, 5)]
    for line in scores:
        total = line["environments"]["(all)"]
        assert (total["tasks"], total["failed"], total["failures"]) == (16, 0, ""), "all of one version, all greedy"
        assert total["pass_1"] == total["pass_k"], "both rollouts of a task are the same"
    last = scores[-1]["environments"]["reasoning_gym_simple_agent"]
    assert (progress["validationReward"], progress["validationStep"]) == (f"{last['reward']:.4f}", 4)
    assert "bestValidationReward" in progress
    # The training went on at its own temperature: nothing was dropped for the other one.
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    eventually(lambda: not kubectl.pods("evaluation", role="inference"), "the servers are gone", 60)
