"""The JSON schema for editors: takes what the API server takes, and underlines what it would drop."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gymtrain_api.crd.editors import editor_schema

ROOT = Path(__file__).parents[3]
FILES = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "examples/swe").glob("*.yaml")])
RUNS = [
    (f"{path.stem}", document)
    for path in [*FILES, ROOT / "examples/environment/run.yaml"]
    for document in yaml.safe_load_all(path.read_text())
    if isinstance(document, dict) and document.get("kind") == "GymTrainingRun"
]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(editor_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[name for name, _ in RUNS])
def test_every_example_is_valid(validator: Any, name: str, run: dict[str, Any]) -> None:
    assert [error.message for error in validator.iter_errors(run)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "trainr"), {}),
        (("spec", "trainer", "nodez"), 2),
        (("spec", "rollout", "maxStalenes"), 1),
        (("spec", "trainer", "gpus"), "eight"),
        (("spec", "weightSync"), {"transport": "Carrier pigeon"}),
        (("kind",), "GymTrainingJob"),
        (("status_",), {}),
    ],
    ids=lambda one: ".".join(one) if isinstance(one, tuple) else "",
)
def test_a_mistake_is_underlined(validator: Any, path: tuple[str, ...], value: Any) -> None:
    run = copy.deepcopy(dict(RUNS)["tiny"])
    at = run
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    assert list(validator.iter_errors(run))


def test_free_blocks_stay_free(validator: Any) -> None:
    run = copy.deepcopy(dict(RUNS)["tiny"])
    run["spec"]["trainer"]["config"]["whatever"] = {"TRL": "takes"}
    run["spec"]["trainer"]["template"] = {"spec": {"nodeSelector": {"a": "b"}}}
    run["metadata"] |= {"labels": {"team": "a"}}
    assert list(validator.iter_errors(run)) == []
