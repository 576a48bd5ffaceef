"""The card of the final model."""

from pathlib import Path
from typing import Any

import yaml

from gymtrain_trainer.context import Context
from gymtrain_trainer.monitoring.model_card import model_card
from gymtrain_trainer.monitoring.record import RewardsFile, StepRecord
from tests.unit.trainer.test_trainer_entry import context


def made(folder: Path, **parts: Any) -> Context:
    found = context(folder, **parts)
    found.run_folder.mkdir(parents=True, exist_ok=True)
    found.paths.model.mkdir(parents=True, exist_ok=True)
    return found


def write_steps(folder: Path, steps: int) -> None:
    file = RewardsFile(folder / "rewards.csv")
    file.begin(0)
    file.append(*(StepRecord(step, step / 100, 0.5, 4, 1.0, 10, 1.0, 0.0) for step in range(1, steps + 1)))


def head(card: str) -> Any:
    return yaml.safe_load(card.split("---")[1])


def test_the_card_names_base_data_environments_and_curve(tmp_path: Path) -> None:
    one = made(
        tmp_path,
        data={
            "train": [
                {"source": "pvc://datasets/train.jsonl", "weight": 2, "agent": "math"},
                {"reasoningGym": {"task": "chain_sum", "size": 50}},
            ]
        },
    )
    (one.paths.model / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    write_steps(one.run_folder, 45)
    card = model_card(one)
    assert head(card)["base_model"] == "org/name"
    assert head(card)["license"] == "apache-2.0"
    assert head(card)["library_name"] == "transformers"
    assert "| pvc://datasets/train.jsonl | 2 | math |" in card
    assert "reasoning_gym chain_sum (50 rows, seed 0)" in card
    assert "- `a.yaml`" in card
    assert "| 1 to 3 | 0.02 | 0.5 | 1 |" in card
    assert "| 43 to 45 | 0.44 |" in card
    assert card.count(" to ") <= 21
    assert "## Evaluation" not in card


def test_evaluations_are_in_the_card_once_there_are_any(tmp_path: Path) -> None:
    one = made(tmp_path)
    (one.run_folder / "evaluations.csv").write_text("step,dataset,pass@1\n10,gsm|8k,0.5\n")
    card = model_card(one)
    assert "| step | dataset | pass@1 |" in card
    assert "| 10 | gsm\\|8k | 0.5 |" in card


def test_an_adapters_card_says_how_to_serve_it(tmp_path: Path) -> None:
    card = model_card(made(tmp_path, model={"source": "pvc://models/x", "lora": {"r": 4}}))
    assert head(card)["library_name"] == "peft"
    assert "base_model" not in head(card)
    assert "--lora-modules" in card


def test_no_secret_reaches_the_card(tmp_path: Path) -> None:
    gym = {
        "configPaths": ["a.yaml"],
        "overrides": {"judge": {"api_key": "sk-1"}},
        "env": [{"name": "A", "value": "sk-2"}],
    }
    assert "sk-" not in model_card(made(tmp_path, gym=gym))


def test_a_broken_file_costs_its_part_alone(tmp_path: Path) -> None:
    one = made(tmp_path)
    (one.run_folder / "evaluations.csv").write_bytes(b"\xff\xfe\x00")
    (one.paths.model / "README.md").write_text("no head")
    assert "# math" in model_card(one)
