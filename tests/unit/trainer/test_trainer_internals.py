"""What the trainer uses of its libraries' internals stands in modules named `internals`, each name with its row."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from gymtrain_trainer import internals
from gymtrain_trainer.framework import FRAMEWORKS
from tests.support.upstream_privates import own_names, uses

ROOT = Path(__file__).parents[3]
PACKAGE = Path(internals.__file__).parent  # in the trainer's image it isn't below the tests
TABLES: dict[str, tuple[internals.Internal, ...]] = {
    str(path.relative_to(PACKAGE)): importlib.import_module(
        ".".join(("gymtrain_trainer", *path.relative_to(PACKAGE).with_suffix("").parts))
    ).INTERNALS
    for path in sorted(PACKAGE.rglob("internals.py"))
}
LIBRARIES = ("trl", "transformers", "peft", "accelerate", "datasets", "torch", "tokenizers", "safetensors", "pyarrow")
TRAINERS = {"trainer", "self._trainer"}  # what our code calls a trainer of theirs
OWN = own_names(PACKAGE)


def _uses(source: str) -> set[str]:
    """Last parts of names that libraries keep to themselves, and attributes of their trainers that are assigned to."""
    found = {use.name.rpartition(".")[2] for use in uses(source, dict.fromkeys(LIBRARIES), OWN)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in TRAINERS:
            found.add(node.attr)
    return found


def modules() -> dict[str, str]:
    """The trainer's modules: source by path."""
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_private_and_replaced_names_are_recognised() -> None:
    source = """
from trl.x import _a, b
from transformers import PreTrainedModel
import torch.distributed._tensor
import os
b._c
trainer._d = 2
trainer.client = 3
PreTrainedModel.from_pretrained = 4
model.config._e
torch._f()
setattr(model, "_g", 1)
torch.nn.Linear.forward = 5

class Ours:
    def __init__(self):
        self.__class__.__name__
        os._exit(0)
"""
    assert _uses(source) == {"_a", "_tensor", "_c", "_d", "client", "from_pretrained", "_e", "_f", "_g", "forward"}


def test_there_is_one_such_module_for_the_trainer_and_one_at_most_for_each_framework() -> None:
    packages = {module.split(".")[1] for module in FRAMEWORKS.values()}
    assert set(TABLES) <= {"internals.py", *(f"{package}/internals.py" for package in packages)}
    assert TABLES["internals.py"]


def test_only_modules_named_internals_use_what_libraries_keep_to_themselves() -> None:
    elsewhere = {name: sorted(_uses(source)) for name, source in modules().items() if name not in TABLES}
    assert {name: found for name, found in elsewhere.items() if found} == {}


def test_each_internal_name_that_is_used_has_its_row_and_each_row_is_used() -> None:
    for name, table in TABLES.items():
        listed = {row.where.rpartition(":")[2].rpartition(".")[2] for row in table}
        assert _uses(modules()[name]) <= listed, name
        package = name.rpartition("internals.py")[0]
        code = "".join(
            text for path, text in modules().items() if path == name or (package and path.startswith(package))
        )
        once = {row for row in listed if len(re.findall(rf"\b{row}\b", code)) < 2}
        assert once == set(), f"{name}: in the table alone"


def test_each_row_says_what_when_why_and_what_instead() -> None:
    for row in [row for table in TABLES.values() for row in table]:
        assert row.where.partition(":")[0].split(".")[0] in LIBRARIES
        assert all(any(character.isdigit() for character in release) for release in row.seen.split(", "))
        assert row.why
        assert row.instead


def test_users_can_read_of_each() -> None:
    text = (ROOT / "docs" / "upstream.md").read_text()
    names = {row.where.rpartition(":")[2].rpartition(".")[2] for table in TABLES.values() for row in table}
    assert {name for name in names if f"`{name}`" not in text and f".{name}`" not in text} == set()


@pytest.mark.torch
@pytest.mark.parametrize("row", [row for table in TABLES.values() for row in table], ids=lambda row: row.where)
def test_each_is_still_there(row: internals.Internal) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    module, _, name = row.where.partition(":")
    found = importlib.import_module(module)
    *owners, last = name.split(".")
    for owner in owners:
        found = getattr(found, owner)
    if row.on_instance:
        setting = re.compile(rf"self\.{last}(: [^=\n]+)? = ")
        assert setting.search(inspect.getsource(found)), f"{owners} doesn't set {last} any more: {row.why}"
    else:
        assert hasattr(found, last), f"{row.where} is gone: {row.why}"


@pytest.mark.torch
def test_trl_asks_for_its_attention_under_the_name_that_ours_has() -> None:
    pytest.importorskip("torch")
    packing = pytest.importorskip("trl.experimental.async_grpo.packing")
    from gymtrain_trainer.trl.attention import TREE_ATTENTION

    assert packing.TREE_ATTENTION == TREE_ATTENTION
