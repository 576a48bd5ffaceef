"""Bad runs end in PreflightPassed=False, say what to fix, and start no other pod."""

from typing import Any

import pytest

from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run

MINUTES = 60


def _config_map(name: str, *lines: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"rows.jsonl": "\n".join(lines) + "\n"},
    }


GOOD_ROW = (
    '{"responses_create_params": {"input": [{"role": "user", "content": "1+1"}]}, '
    '"question": "1+1", "answer": "2", "metadata": {}}'
)


def _bad_config() -> list[dict[str, Any]]:
    run = tiny_run("bad-config")
    run["spec"]["gym"]["configPaths"] = ["resources_servers/reasoning_gim/configs/reasoning_gym.yaml"]
    run["spec"]["trainer"]["config"] |= {"lerning_rate": 0.1, "num_generations": 3}
    return [run]


def _missing_value() -> list[dict[str, Any]]:
    run = tiny_run("missing-value")
    run["spec"]["gym"]["overrides"] = {"reasoning_gym": {"resources_servers": {"reasoning_gym": {"judge": "???"}}}}
    return [run]


def _bad_rows() -> list[dict[str, Any]]:
    run = tiny_run("bad-rows")
    stray = GOOD_ROW[:-1] + ', "agent_ref": {"type": "responses_api_agents", "name": "reasoning_gym_simple_agnt"}}'
    run["spec"]["data"]["train"] = [{"source": "configmap://rows/rows.jsonl"}]
    run["spec"]["gym"]["servers"] = {"reasoning_gm": {"replicas": 2}}
    return [_config_map("rows", GOOD_ROW, '{"broken": ', stray), run]


def _missing_claim() -> list[dict[str, Any]]:
    run = tiny_run("missing-claim")
    run["spec"]["data"]["train"] = [{"source": "pvc://nowhere/rows.jsonl"}]
    return [run]


def _unreadable_model() -> list[dict[str, Any]]:
    run = tiny_run("no-model")
    run["spec"]["model"] = {"source": "oci://docker.io/library/debian:trixie-slim"}
    return [run]


def _unknown_vllm_argument() -> list[dict[str, Any]]:
    run = tiny_run("vllm-argument")
    run["spec"]["inference"]["args"] = ["--block-size=32", "--max-model-lenn=512"]
    return [run]


def _reserved_vllm_argument() -> list[dict[str, Any]]:
    run = tiny_run("vllm-reserved")
    run["spec"]["inference"]["args"] = ["--max-model-len=512", "--served-model-name=mine"]
    return [run]


def _model_too_short() -> list[dict[str, Any]]:
    run = tiny_run("vllm-length")
    run["spec"]["inference"]["args"] = ["--max-model-len=512k", "--gpu-memory-utilization=0.5"]
    return [run]


CASES = [
    (_bad_config, ["reasoning_gim", "reasoning_gym", "lerning_rate", "learning_rate", "num_generations"]),
    (_missing_value, ["reasoning_gym.judge", "???"]),
    (_bad_rows, [":2", ":3", "reasoning_gm", "reasoning_gym_simple_agnt", "reasoning_gym_simple_agent"]),
    (_missing_claim, ["nowhere"]),
    (_unreadable_model, ["model"]),
    (_unknown_vllm_argument, ["spec.inference.args[1]", "--max-model-lenn", "did you mean --max-model-len?"]),
    (_reserved_vllm_argument, ["spec.inference.args[1]", "--served-model-name can't be set"]),
    (_model_too_short, ["spec.inference.args[0]", "max_model_len", "512000"]),
]


def test_each_bad_run_fails_preflight_with_a_message_that_says_what_to_fix(operator: Kubectl, kubectl: Kubectl) -> None:
    # Applied together: the checks wait for imports most of the time.
    expected: dict[str, list[str]] = {}
    for build, words in CASES:
        objects = build()
        kubectl.apply(*objects)
        expected[objects[-1]["metadata"]["name"]] = words

    for name, words in expected.items():
        kubectl.wait_condition(name, "Failed", 4 * MINUTES)
        verdict = kubectl.condition(name, "PreflightPassed")
        assert verdict["status"] == "False", name
        for word in words:
            assert word in verdict["message"], f"{name}: {word!r} is not in: {verdict['message']}"

    for name in expected:
        others = [p for p in kubectl.pods(name) if p["metadata"]["labels"]["gymtrain.dev/role"] != "preflight"]
        assert others == [], f"{name} started pods that must wait for preflight"


def test_a_failed_preflight_is_repeated_when_the_spec_is_mended(operator: Kubectl, kubectl: Kubectl) -> None:
    run = tiny_run("mended", lerning_rate=0.1)
    kubectl.apply(run)
    kubectl.wait_condition("mended", "Failed", 4 * MINUTES)
    del run["spec"]["trainer"]["config"]["lerning_rate"]
    kubectl.apply(run)
    eventually(
        lambda: kubectl.condition("mended", "PreflightPassed").get("status") == "True", "preflight passes", 3 * MINUTES
    )
    assert kubectl.condition("mended", "Failed")["status"] == "False"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"model": {"source": "ftp://x"}}, "spec.model.source"),
        ({"data": {"train": []}}, "spec.data.train"),
    ],
)
def test_what_the_schema_can_know_is_refused_at_apply_time(
    operator: Kubectl, kubectl: Kubectl, patch: dict[str, Any], words: str
) -> None:
    run = tiny_run("refused")
    run["spec"] |= patch
    with pytest.raises(AssertionError, match=words):
        kubectl.apply(run)
