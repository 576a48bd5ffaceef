"""A context that the model doesn't take is refused before vLLM starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.context_length import check_context_length


def model(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024} | config))
    return folder


@pytest.mark.parametrize("arguments", [["--max-model-len=2048"], ["--seed=1", "--max_model_len", "2048"]])
def test_a_context_above_the_models_limit_is_named(tmp_path: Path, arguments: list[str]) -> None:
    (finding,) = check_context_length(model(tmp_path), arguments)
    assert finding.where == f"spec.inference.args[{len(arguments) // 2}]"
    assert "2048" in finding.message
    assert "1024 or less" in finding.message


@pytest.mark.parametrize(
    "arguments",
    [[], ["--max-model-len=1024"], ["--max-model-len=auto"], ["--max-model-len=9999", "--max-model-len=512"]],
)
def test_what_fits_or_is_no_number_passes(tmp_path: Path, arguments: list[str]) -> None:
    assert check_context_length(model(tmp_path), arguments) == []


def test_a_model_whose_positions_are_stretched_passes(tmp_path: Path) -> None:
    scaled = model(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert check_context_length(scaled, ["--max-model-len=2048"]) == []


def test_a_model_without_a_readable_config_is_somebody_elses_finding(tmp_path: Path) -> None:
    assert check_context_length(tmp_path, ["--max-model-len=2048"]) == []
