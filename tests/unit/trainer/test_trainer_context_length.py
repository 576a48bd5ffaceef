"""Lengths that don't fit into each other are refused before vLLM starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.preflight.context_length import served_context
from gymtrain_trainer.trl.config_checks import check_lengths
from tests.unit.trainer.test_trainer_settings import spec


def model(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024} | config))
    return folder


def findings(folder: Path, run: GymTrainingRunSpec) -> list[Finding]:
    context, misfits = served_context(folder, run)
    return misfits + check_lengths(run, context)


def check(folder: Path, arguments: list[str], **config: Any) -> list[Finding]:
    return findings(folder, spec({"max_completion_length": 64} | config, inference={"args": arguments}))


@pytest.mark.parametrize("arguments", [["--max-model-len=2048"], ["--seed=1", "--max_model_len", "2048"]])
def test_a_context_above_the_models_limit_is_named(tmp_path: Path, arguments: list[str]) -> None:
    (finding,) = check(model(tmp_path), arguments)
    assert finding.where == f"spec.inference.args[{len(arguments) // 2}]"
    assert "2048" in finding.message
    assert "1024 or less" in finding.message


@pytest.mark.parametrize(
    "arguments",
    [[], ["--max-model-len=1024"], ["--max-model-len=auto"], ["--max-model-len=9999", "--max-model-len=512"]],
)
def test_what_fits_or_is_no_number_passes(tmp_path: Path, arguments: list[str]) -> None:
    assert check(model(tmp_path), arguments) == []


def test_a_model_whose_positions_are_stretched_passes(tmp_path: Path) -> None:
    scaled = model(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert check(scaled, ["--max-model-len=2048"]) == []


def test_a_model_without_a_readable_config_is_somebody_elses_finding(tmp_path: Path) -> None:
    assert check(tmp_path, ["--max-model-len=2048"]) == []


@pytest.mark.parametrize(
    ("arguments", "source"), [(["--max-model-len=512"], "--max-model-len"), ([], "max_position_embeddings")]
)
def test_an_answer_that_leaves_no_room_for_a_prompt_is_refused(
    arguments: list[str], source: str, tmp_path: Path
) -> None:
    (finding,) = check(model(tmp_path), arguments, max_completion_length=1024)
    assert finding.where == "spec.trainer.config.max_completion_length"
    assert finding.message.startswith("is 1024 tokens, but prompt and answer together have")
    assert source in finding.message


def test_trls_default_of_an_answer_counts_too(tmp_path: Path) -> None:
    (finding,) = findings(model(tmp_path), spec(inference={"args": ["--max-model-len=512"]}))
    assert finding.message.startswith("is 2048 tokens (TRL's default)")


@pytest.mark.parametrize(("budget", "refused"), [(512, True), (1023, True), (1024, False), (0, False), (-1, False)])
def test_a_token_budget_below_the_context_is_refused_since_trl_would_drop_long_samples(
    budget: int, refused: bool, tmp_path: Path
) -> None:
    found = check(model(tmp_path), ["--max-model-len=1024"], token_budget=budget)
    assert [finding.where for finding in found] == (["spec.trainer.config.token_budget"] if refused else [])
    assert not refused or f"--max-model-len={budget}" in found[0].message
