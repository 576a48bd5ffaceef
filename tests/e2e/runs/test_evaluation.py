"""A run that is evaluated while it trains, greedily, with its own real gateway and vLLM."""

import csv
import json
from pathlib import Path
from typing import Any

from tests.support.command_line import Gymtrain
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import example

MINUTES = 60


def test_a_run_is_evaluated_at_every_second_step_and_each_score_has_its_weights(
    operator: Kubectl, kubectl: Kubectl, gymtrain: Gymtrain, tmp_path: Path
) -> None:
    run = example("evaluation.yaml", "evaluation")
    run["spec"]["trainer"]["config"]["save_total_limit"] = 2
    kubectl.apply(run)
    kubectl.wait_condition("evaluation", "Complete", 10 * MINUTES)
    progress = kubectl.get("gymtrainingrun", "evaluation")["status"]["progress"]
    pod = kubectl.pods("evaluation", role="trainer")[0]["metadata"]["name"]
    lines = _events(kubectl.logs(pod, "trainer"))
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
    gymtrain("fetch", "evaluation", "evaluations.csv", "-o", str(tmp_path))
    with (tmp_path / "evaluations.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["environment"] == "reasoning_gym_simple_agent"]
    assert [(int(row["step"]), row["version"]) for row in rows] == [(line["step"], line["version"]) for line in scores]

    # Its checkpoints once more, by a run that trains nothing.
    kubectl.apply(example("evaluation-only.yaml", "evaluation-only"))
    kubectl.wait_condition("evaluation-only", "Complete", 10 * MINUTES)
    pod = kubectl.pods("evaluation-only", role="trainer")[0]["metadata"]["name"]
    log = kubectl.logs(pod, "trainer")
    again = [line for line in _events(log) if line["event"] == "evaluation"]
    assert [line["version"] for line in again] == [f"evaluation-only:1:{number}" for number in (1, 2)]
    assert "step  environment" in log, "a table at the end"
    for old, new in zip(scores[1:], again, strict=True):
        assert new["step"] == old["step"]
        first, second = (line["environments"]["(all)"] for line in (old, new))
        assert (second["tasks"], second["failed"]) == (16, 0)
        assert second["reward"] == first["reward"], "greedy, and the same weights"


def _events(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"event"')]
