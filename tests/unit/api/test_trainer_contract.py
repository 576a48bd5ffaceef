"""docs/own-trainer.md says what the code says: of each table there, the rows."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gymtrain_api import manifest, wiring
from gymtrain_api.trainer_contract import EXIT_CODES, FOLDERS, LINES, OPTIONAL, ROUTES, VARIABLES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "own-trainer.md").read_text()


def _table(first: str) -> list[list[str]]:
    """The rows of the table whose header begins with a cell, each as its cells."""
    (block,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]


def _after(heading: str) -> list[list[str]]:
    """The rows of the first table after a text."""
    rest = PAGE[PAGE.index(heading) :]
    block = re.search(r"\|[-| ]+\|\n((?:\|.*\n)+)", rest)
    assert block is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block[1].splitlines()]


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_every_variable_of_a_pod() -> None:
    assert _table("Variable") == [[f"`{one.name}`", one.what] for one in VARIABLES if not one.outside]


def test_the_page_names_the_variables_of_a_trainer_outside_a_pod() -> None:
    section = PAGE[PAGE.index("The trainer has to heed the variables") :]
    assert [one.name for one in VARIABLES if one.outside and f"`{one.name}`" not in section] == []


def test_the_page_has_every_folder() -> None:
    wanted = [[f"`{one.path}`", one.what, "writable" if one.writable else "read-only"] for one in FOLDERS]
    assert _table("Path") == wanted


def test_the_page_has_every_route() -> None:
    wanted = [[f"`{one.call}`", one.answer, one.asked_by, one.without] for one in ROUTES]
    assert _after("## What a trainer serves") == wanted


def test_the_page_has_every_exit_code() -> None:
    assert _table("Exit code") == [[str(int(code)), text] for code, text in EXIT_CODES.items()]


def test_the_page_has_every_line() -> None:
    names = [f"`{line}`{' (may be left out)' if line in OPTIONAL else ''}" for line in LINES]
    assert _table("Line") == [[name, text] for name, text in zip(names, LINES.values(), strict=True)]


@pytest.mark.parametrize(
    ("document", "heading"),
    [
        (wiring.RunConfig, "`run.json`:"),
        (wiring.DataFile, "`index.json` has"),
        (wiring.TrainerProgress, "`TrainerProgress`, of which"),
        (wiring.WeightsHeld, "`WeightsHeld`:"),
        (manifest.PullUpdate, "| `PullUpdate` |"),
    ],
)
def test_the_page_has_every_field_of_a_document(document: type[BaseModel], heading: str) -> None:
    found = [name for row in _after(heading) for name in _named(row[0])]
    assert found == [*dict.fromkeys(found)]
    assert set(found) == set(document.model_fields)


@pytest.mark.parametrize("line", [manifest.WeightHead, manifest.WeightPart, manifest.WeightEnd])
def test_the_page_has_every_field_of_a_manifests_line(line: type[BaseModel]) -> None:
    (cells,) = [row for row in _after("The manifest's lines") if row[0] == f"`{line.__name__}`"]
    assert set(_named(cells[1])) == set(line.model_fields)


def test_the_page_names_every_phase() -> None:
    phases = wiring.TrainerProgress.model_fields["phase"].annotation.__args__  # type: ignore[union-attr]
    (cells,) = [row for row in _after("`TrainerProgress`, of which") if row[0] == "`phase`"]
    assert cells[1] == ", ".join(phases)


def test_the_examples_make_the_calls_of_the_page_in_its_order() -> None:
    code = (ROOT / "examples" / "trainers" / "minimal" / "contract.py").read_text()
    push = code[code.index("def _push") : code.index("def _repair")]
    calls = [_named(row[0])[0].removeprefix("POST ") for row in _after("Of every address of")]
    places = [push.rindex(call) for call in calls]
    assert places == sorted(places)


def test_the_contract_has_the_port() -> None:
    assert f"On port {wiring.TRAINER_PORT}," in PAGE
    assert f"there are {wiring.TRAINER_GRACE_SECONDS} s" in PAGE
