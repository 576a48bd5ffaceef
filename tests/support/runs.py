"""Runs for the tests, made from examples/tiny.yaml."""

import copy
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


def tiny_run(name: str, **trainer_config: Any) -> dict[str, Any]:
    """The fast variant of the quickstart under another name, with some trainer settings replaced."""
    documents = [d for d in yaml.safe_load_all((EXAMPLES / "tiny.yaml").read_text()) if d["kind"] == "GymTrainingRun"]
    run: dict[str, Any] = copy.deepcopy(documents[0])
    run["metadata"] = {"name": name}
    run["spec"]["trainer"]["config"].update(trainer_config)
    return run


def swe_run(name: str) -> dict[str, Any]:
    """examples/swe/swe.yaml under another name."""
    (run,) = (d for d in yaml.safe_load_all((EXAMPLES / "swe/swe.yaml").read_text()) if d["kind"] == "GymTrainingRun")
    found: dict[str, Any] = run | {"metadata": {"name": name}}
    return found
