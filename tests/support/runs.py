"""Runs for the tests, made from the examples."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.images import published
from tests.support.kubectl import Kubectl

EXAMPLES = Path(__file__).parents[2] / "examples"
NOWHERE = {"requests": {"cpu": "1000"}}
"""Resources that no node has."""


def tiny_run(name: str, **trainer_config: Any) -> dict[str, Any]:
    """The fast variant of the quickstart under another name, with some trainer settings replaced."""
    run = example("tiny.yaml", name)
    run["spec"]["trainer"]["config"].update(trainer_config)
    return run


def unhurried_run(name: str, **trainer_config: Any) -> dict[str, Any]:
    """One that trains while a test looks at it: its rollouts come one after the other, so that a step takes a while and
    not the CPUs."""
    run = tiny_run(name, **trainer_config)
    run["spec"]["rollout"]["maxConcurrent"] = 1
    return run


def swe_run(name: str) -> dict[str, Any]:
    """examples/swe/swe.yaml under another name."""
    return example("swe/swe.yaml", name)


def swe_tasks() -> str:
    """The rows of examples/swe."""
    return published((EXAMPLES / "swe/tasks.jsonl").read_text())


def make_swe_tasks(kubectl: Kubectl) -> None:
    """The ConfigMap that examples/swe/swe.yaml reads them from."""
    tasks = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "swe-tasks"}}
    # Created, not applied: kubectl would note all of it once more.
    kubectl.run("create", "-f", "-", stdin=json.dumps({**tasks, "data": {"tasks.jsonl": swe_tasks()}}))


def example(path: str, name: str) -> dict[str, Any]:
    """The run of an example under another name."""
    documents = yaml.safe_load_all(published((EXAMPLES / path).read_text()))
    run: dict[str, Any] = next(d for d in documents if d["kind"] == "GymTrainingRun")
    return run | {"metadata": {"name": name}}


def exported(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """The run as a backup keeps it: without what the server adds, and without its status."""
    run = kubectl.get("gymtrainingrun", name)
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        run["metadata"].pop(field, None)
    del run["status"]
    return run
