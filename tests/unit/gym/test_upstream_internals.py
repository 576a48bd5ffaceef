"""Only one module of the Gym image knows what NeMo Gym and its libraries keep to themselves."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from gymtrain_gym import upstream_internals
from gymtrain_gym.upstream_internals import INTERNALS, Internal

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "gym" / "gymtrain_gym"
UPSTREAM = {
    "hydra",
    "litellm",
    "minisweagent",
    "nemo_gym",
    "omegaconf",
    "ray",
    "responses_api_agents",
    "starlette",
    "swebench",
    "uvicorn",
}
_PRIVATE = re.compile(r"_[A-Za-z]\w*")


def upstream_names(tree: ast.AST) -> set[str]:
    """Names in a module that stand for something of upstream's."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UPSTREAM:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.partition(".")[0] in UPSTREAM}
    return names


def private_uses(source: str) -> Iterator[str]:
    """Private names of others that a module reads, imports, passes or names in a text, and what it replaces."""
    tree = ast.parse(source)
    upstream = upstream_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names) if (module or "").partition(".")[0] in UPSTREAM:
                yield from (alias.name for alias in names if _PRIVATE.fullmatch(alias.name))
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=owner, attr=name, ctx=context):
                replaced = isinstance(context, ast.Store) and ast.unparse(owner) in upstream
                if replaced or _PRIVATE.fullmatch(name):
                    yield name
            case ast.keyword(arg=str(name)) if _PRIVATE.fullmatch(name):
                yield name
            case ast.Constant(value=str(text)) if _PRIVATE.fullmatch(text):
                yield text


def overridden(source: str) -> Iterator[str]:
    """Methods that classes derived from upstream's define, as CLASS.METHOD of upstream's class."""
    tree = ast.parse(source)
    upstream = upstream_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                if base.partition(".")[0] in upstream:
                    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
                    yield from (f"{base.rpartition('.')[2]}.{one.name}" for one in methods if one.name != "__init__")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_uses_are_recognised() -> None:
    source = """
import uvicorn
from nemo_gym.x import _a, B
uvicorn.run = 1
config._b
f(_c=1)
module["_d"] = 2
self._own
uvicorn.Config
B.__module__
"""
    assert sorted(private_uses(source)) == ["_a", "_b", "_c", "_d", "run"]
    assert list(overridden("from uvicorn import Server\nclass A(Server):\n def __init__(self): ...\n def f(self): ..."))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_stand_in_one_module(path: Path) -> None:
    if path != Path(upstream_internals.__file__):
        assert list(private_uses(path.read_text())) == []


def test_everything_private_or_replaced_is_listed() -> None:
    listed = {name.rpartition(":")[2].rpartition(".")[2] for internal in INTERNALS for name in internal.names}
    listed |= {argument for internal in INTERNALS for argument in internal.arguments}
    source = Path(upstream_internals.__file__).read_text()
    assert set(private_uses(source)) - listed == set()


def test_every_overridden_method_is_listed() -> None:
    listed = {name.rpartition(":")[2] for internal in INTERNALS for name in internal.names}
    found = {name for path in modules() for name in overridden(path.read_text())}
    assert {"Server.on_tick", "GlobalConfigDictParser.raise_on_missing_values"} <= found
    assert found <= listed


def test_each_says_where_it_was_seen_and_what_would_replace_it() -> None:
    for internal in INTERNALS:
        assert re.search(r"\d+\.\d+", internal.seen_in), internal.names
        assert internal.why and internal.replaced_by, internal.names


@pytest.mark.gym
@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.names[0])
def test_each_is_there(internal: Internal) -> None:
    for name in internal.names:
        module, _, path = name.partition(":")
        found: Any = reduce(getattr, path.split("."), importlib.import_module(module))
        source = inspect.getsource(found) if internal.arguments else ""
        assert callable(found)
        assert all(f'"{argument}"' in source for argument in internal.arguments), internal.arguments
