"""Preflight of a run that brings a trainer of its own: what is checked, and what is said to be unchecked."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.wiring import PREFLIGHT_MARK, TrainerPreflight
from gymtrain_trainer.preflight import main
from tests.support.specs import smallest_run


@pytest.fixture
def verdict_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs preflight on a run with a command, as its container does."""
    model = tmp_path / "model"
    model.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("")
    monkeypatch.setenv("GYMTRAIN_RUN_CONFIG", str(tmp_path / "run.json"))
    monkeypatch.setenv("GYMTRAIN_ROOT", str(tmp_path))

    def run(model_config: dict[str, Any] | None = None, **blocks: Any) -> TrainerPreflight:
        (model / "config.json").write_text(json.dumps({"architectures": ["X"], **(model_config or {})}))
        trainer = {"image": "mine:1", "command": ["train"], **blocks.pop("trainer", {})}
        spec = smallest_run(trainer=trainer, **blocks)["spec"]
        hosts = dict.fromkeys(("inference_url", "inference_pods_host", "trainer_host"), "x")
        (tmp_path / "run.json").write_text(json.dumps({"name": "own", "namespace": "ns", "spec": spec, **hosts}))
        assert main.main() == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(PREFLIGHT_MARK))
        return TrainerPreflight.model_validate_json(line.removeprefix(PREFLIGHT_MARK))

    return run


def test_settings_that_trl_would_refuse_are_not_judged(verdict_of: Any) -> None:
    verdict = verdict_of(trainer={"config": {"no_such_setting": 1, "algo": "ppo"}})
    assert verdict.findings == []


def test_what_is_not_checked_is_said(verdict_of: Any) -> None:
    [warning] = verdict_of(trainer={"config": {"algo": "ppo"}}, resumeFrom="before").warnings
    assert warning.where == "spec.trainer.command"
    assert "only it knows what it makes of spec.trainer.config, spec.resumeFrom" in warning.message
    assert "spec.model.lora" not in warning.message


def test_an_incomplete_model_is_refused(verdict_of: Any, tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").unlink()
    [finding] = verdict_of().findings
    assert finding.where == "spec.model.source"
    assert "no weights" in finding.message


def test_a_context_that_vllm_would_refuse_is_refused(verdict_of: Any) -> None:
    [finding] = verdict_of({"max_position_embeddings": 64}, inference={"args": ["--max-model-len=128"]}).findings
    assert finding.where == "spec.inference.args[0]"


def test_a_model_that_sees_may_be_trained_elsewhere(verdict_of: Any) -> None:
    assert verdict_of({"vision_config": {"x": 1}}).findings == []


def test_no_framework_is_loaded(verdict_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "load_framework", lambda *_: pytest.fail("a framework was loaded"))
    verdict_of()
    assert "torch" not in sys.modules
