"""docs/commands.md says what ran of every command that the documentation shows, and of no other.

A row is a form of a command: words in capitals stand for any word, and `...` for anything. A command belongs to the
first row that matches.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pages import ROOT
from tests.support.shown import PAGES, commands

PAGE = ROOT / "docs" / "commands.md"
SHOWING = [page for page in PAGES if page != PAGE]
PLACEHOLDER = re.compile(r"(?<![\w$])[A-Z][A-Z0-9_]+(?![\w=])")
EVIDENCE = re.compile(r"`((?:tests|dev|docs/recorded|\.ci)/[^`:\s]+)(?:::([^`]+))?`")


class Row(NamedTuple):
    command: str
    pages: list[str]
    ran: str

    def covers(self, command: str) -> bool:
        parts = [PLACEHOLDER.sub("\0", part) for part in self.command.split("...")]
        pattern = ".*".join(re.escape(part).replace(re.escape("\0"), r"\S+") for part in parts)
        return re.fullmatch(pattern, command) is not None


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(command.strip("`"), re.findall(r"\(([^)]+)\)", pages), ran) for command, pages, ran in cells]


ROWS = rows()
SHOWN = [(command, page) for page in SHOWING for command in commands(page.read_text())]


def row_of(command: str) -> Row | None:
    return next((row for row in ROWS if row.covers(command)), None)


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_shows_has_a_row(page: Path) -> None:
    assert [command for command in commands(page.read_text()) if row_of(command) is None] == []


def test_every_row_links_to_the_pages_that_show_its_command_and_to_no_other() -> None:
    """A row without a page is stale."""
    wrong: dict[str, list[str]] = {}
    for row in ROWS:
        pages = sorted({os.path.relpath(page, PAGE.parent) for command, page in SHOWN if row_of(command) == row})
        if not pages or pages != sorted(row.pages):
            wrong[row.command] = pages
    assert wrong == {}


def test_every_path_that_is_named_is_there() -> None:
    assert [path for row in ROWS for path, _ in EVIDENCE.findall(row.ran) if not (ROOT / path).exists()] == []


def test_every_test_that_is_named_is_in_its_file() -> None:
    named = [(path, name) for row in ROWS for path, name in EVIDENCE.findall(row.ran) if name]
    assert named
    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_every_row_names_what_ran_or_says_that_nothing_did() -> None:
    assert [row.command for row in ROWS if not EVIDENCE.search(row.ran) and not row.ran.startswith("Not run")] == []


def test_commands_are_joined_and_freed_of_prompts_comments_and_output() -> None:
    block = "```console\n$ kubectl get x  # c\nkubectl-like output\n```\n```\nhelm install a \\\n  --wait\n```\n"
    assert commands(f"kubectl no\n{block}```yaml\nmake no\n```\n") == ["kubectl get x", "helm install a --wait"]


@pytest.mark.parametrize(
    ("form", "command", "covered"),
    [
        ("gymtrain watch RUN", "gymtrain watch sums", True),
        ("gymtrain watch RUN", "gymtrain watch sums --now", False),
        ("helm install NAME ...", "helm install a --wait", True),
        ("kubectl wait gtr/RUN", "kubectl wait gtr/sums", True),
        ("make krew KREW_URL=URL", "make krew OTHER=x", False),
    ],
)
def test_a_form_covers_the_commands_that_it_stands_for(form: str, command: str, covered: bool) -> None:
    assert Row(form, [], "").covers(command) is covered
