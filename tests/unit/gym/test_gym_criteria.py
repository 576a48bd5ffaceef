"""NeMo Gym's own criteria as examples: nobody ran them yet, but preflight takes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_gym import preflight
from gymtrain_gym.datasets.preparation import Folders
from tests.unit.gym.conftest import run_of

pytestmark = pytest.mark.gym

EXAMPLES = Path(__file__).parents[3] / "examples"
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
# A row as each environment has it; the sets themselves are on the hub.
ROWS: dict[str, dict[str, Any]] = {
    "dapo17k": {"responses_create_params": {"input": "1 + 1 = ?"}, "question": "1 + 1 = ?", "expected_answer": "2"},
    "workplace-assistant-full": {"responses_create_params": {"input": "mail Ann", "tools": [TOOL]}, "ground_truth": []},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_criterion_passes_preflight(name: str, tmp_path: Path) -> None:
    (manifest,) = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    folders = Folders(sources=tmp_path / "sources", data=tmp_path / "data", fetched=tmp_path / "fetched")
    row = f"{json.dumps(ROWS[name])}\n"
    for split, mounted in (("train", "0"), ("validation", "validation-0")):
        file = manifest["spec"]["data"][split][0]["source"].rpartition("/")[2]
        # Both ways that its rows can come: from a mounted claim, and fetched.
        for path in (folders.sources / mounted / file, folders.fetched / f"{split}-0.jsonl"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(row)
    verdict = preflight.check(run_of(manifest["spec"], name), folders)
    assert (verdict.findings, verdict.warnings) == ([], [])
    assert [file.rows for file in (*verdict.data.train, *verdict.data.validation)] == [1, 1]


@pytest.mark.parametrize(("name", "steps"), [("dapo17k", 1000), ("workplace-assistant-full", 100)])
def test_a_criterion_takes_its_steps_is_evaluated_and_says_that_it_was_not_run(name: str, steps: int) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    assert spec["trainer"]["config"]["max_steps"] >= steps
    assert spec["evaluation"]["everySteps"] <= steps // 2
    assert spec["model"]["source"].endswith("/Qwen3-4B-Instruct-2507")
    assert "# NOT RUN" in text
