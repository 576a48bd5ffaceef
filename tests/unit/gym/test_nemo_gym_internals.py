"""What NeMo Gym and its libraries don't offer publicly stands in one module, with a row for each name."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymtrain_gym.nemo_gym_internals import INTERNALS, Internal
from tests.support.upstream_privates import Part, internals, load, strays, uses

ROOT = Path(__file__).parents[3]
LIBRARIES = (
    "hydra",
    "litellm",
    "minisweagent",
    "nemo_gym",
    "omegaconf",
    "ray",
    "reasoning_gym",
    "responses_api_agents",
    "starlette",
    "swebench",
    "uvicorn",
)
PART = Part(ROOT / "gym" / "gymtrain_gym", "nemo_gym_internals.py", dict.fromkeys(LIBRARIES))
LISTED = {internal.where.replace(":", ".") for internal in INTERNALS}


def overridden(source: str) -> Iterator[str]:
    """Methods of a library's classes that classes of ours override, as CLASS.METHOD."""
    tree = ast.parse(source)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name in LIBRARIES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                if base.partition(".")[0] in imported:
                    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
                    yield from (f"{base.rpartition('.')[2]}.{one.name}" for one in methods if one.name != "__init__")


def test_what_is_private_or_replaced_is_used_in_one_module() -> None:
    assert strays(PART) == []


def test_everything_that_is_used_is_listed() -> None:
    used = internals(PART)
    assert "nemo_gym.server_utils.initialize_ray" in used
    assert set(used) - LISTED == set()


def test_private_arguments_and_names_in_texts_are_listed() -> None:
    rows = " ".join(f"{internal.where} {internal.seen}" for internal in INTERNALS)
    found = {use.name for use in uses((PART.folder / PART.internals).read_text(), PART.libraries)}
    found = {name for name in found if "." not in name}
    assert {"_temp_dir", "_split_trajectory_for_responses"} <= found
    assert {name for name in found if not re.search(rf"\b{name}\b", rows)} == set()


def test_every_overridden_method_is_listed() -> None:
    found = {name for path in PART.folder.rglob("*.py") for name in overridden(path.read_text())}
    assert {"Server.on_tick", "GlobalConfigDictParser.raise_on_missing_values"} <= found
    assert {name for name in found if not any(row.endswith(f".{name}") for row in LISTED)} == set()


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.where)
def test_each_says_where_it_was_seen_why_it_is_used_and_what_would_replace_it(internal: Internal) -> None:
    assert re.match(r"[a-z-]+ \d+\.\d+", internal.seen)
    assert internal.why
    assert internal.instead


@pytest.mark.gym
@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.where)
def test_each_is_still_there(internal: Internal) -> None:
    found = load(internal.where.replace(":", "."))
    assert callable(found)
    if arguments := re.findall(r"`(_\w+)`", internal.seen):
        source = inspect.getsource(found)
        assert [name for name in arguments if f'"{name}"' not in source] == []
