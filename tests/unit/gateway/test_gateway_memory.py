"""What the gateway remembers, and its limits."""

import json
from pathlib import Path

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import RunConfig
from gymtrain_gateway import settings
from gymtrain_gateway.errors import StartError
from gymtrain_gateway.lru import LRU
from gymtrain_gateway.main import connection_limits
from gymtrain_gateway.prompts import UsedPrompts
from tests.support.specs import of_a_later_release


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    kept: LRU[str, str] = LRU(2)
    kept.put("a", "1")
    kept.put("b", "2")
    kept.get("a")
    kept.put("c", "3")
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == ("1", None, "3", 2)


def test_the_weight_of_values_is_bounded() -> None:
    kept: LRU[str, str] = LRU(10, weight=len)
    kept.put("a", "12345")
    kept.put("a", "123456")
    kept.put("b", "1234")
    assert kept.held == 10
    kept.put("c", "too much for all")
    assert (kept.held, len(kept)) == (0, 0)


def test_prompts_are_found_by_all_that_makes_them() -> None:
    prompts = UsedPrompts(100)
    body = {"messages": [{"role": "user", "content": "q"}], "tools": None, "temperature": 1}
    prompts.note(body, [1, 2])
    assert prompts.find({"messages": body["messages"]}) == [1, 2]
    assert prompts.find({**body, "chat_template_kwargs": {"enable_thinking": False}}) is None


def run(**spec: object) -> RunConfig:
    minimal = {
        "model": {"source": "hf://o/m"},
        "gym": {"configPaths": ["a.yaml"]},
        "data": {"train": [{"source": "gym://a.jsonl"}]},
    }
    return RunConfig(
        name="run",
        namespace="n",
        spec=GymTrainingRunSpec.model_validate({**minimal, **spec}),
        inference_url="http://i:8000",
        inference_pods_host="pods",
        trainer_host="trainer",
    )


def test_gateway_pods_share_what_a_vllm_pod_may_have() -> None:
    found = settings.from_run(run(gateway={"replicas": 3, "maxInFlight": 256, "timeoutSeconds": 9}))
    assert (found.max_in_flight, found.timeout_seconds) == (86, 9)


def test_the_run_says_what_counts_as_its_weights() -> None:
    assert settings.from_run(run()).rules.synced
    assert not settings.from_run(run(weightSync={"transport": "None"})).rules.synced
    assert settings.from_run(run(model={"source": "hf://o/m", "lora": {"r": 8}})).rules.adapters


def test_a_run_json_of_a_later_release_is_read(tmp_path: Path) -> None:
    """The operator was upgraded, the gateway's pod was not, and its container starts again."""
    made = run(gateway={"replicas": 3})
    document = json.loads(made.model_dump_json(by_alias=True, exclude_defaults=True))
    (tmp_path / "run.json").write_text(json.dumps(of_a_later_release(document)))
    assert settings.read(tmp_path / "run.json") == settings.from_run(made)


def test_a_run_json_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="can't read"):
        settings.read(tmp_path / "run.json")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(StartError, match=r"run\.json"):
        settings.read(tmp_path / "run.json")


def test_connections_fit_the_open_files_that_the_kernel_grants() -> None:
    assert connection_limits(1_048_576, 16_384).upstream == 16_384
    assert connection_limits(1_048_576, 16_384).shortage(16_384) is None
    tight = connection_limits(1024, 16_384)
    assert tight.upstream == 448
    assert "LimitNOFILE" in str(tight.shortage(16_384))
