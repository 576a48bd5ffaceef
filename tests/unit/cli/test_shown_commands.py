"""The commands that the documentation shows are there, with these arguments and options."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from gymtrain_cli.main import app
from tests.support.pages import ROOT
from tests.support.shown import PAGES, blocks


def shown(text: str) -> list[str]:
    """Command lines in blocks of code that are for us, without `kubectl` and comments."""
    lines = [line.strip().removeprefix("$ ") for block in blocks(text) for line in block.splitlines()]
    return [line.removeprefix("kubectl ") for line in lines if re.match(r"(kubectl )?gymtrain [a-z]", line)]


def parse(line: str) -> None:
    """Raises what the command line would say of a line that it doesn't understand."""
    group: Any = typer.main.get_command(app)
    _, name, *arguments = shlex.split(line, comments=True)
    context = group.make_context("gymtrain", [name, *arguments])
    _, command, rest = group.resolve_command(context, [name, *arguments])
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_commands_are_understood(path: Path) -> None:
    for line in shown(path.read_text()):
        parse(line)


def test_the_tutorials_commands_are_among_them() -> None:
    names = {line.split()[1] for line in shown((ROOT / "docs/tutorial.md").read_text())}
    assert {"init", "validate", "watch", "curve", "suspend", "resume", "fetch"} <= names


def test_commands_are_found_in_blocks_of_code() -> None:
    block = "```\nkubectl gymtrain watch r  # c\nkubectl get x\n  gymtrain fetch r\n```\n"
    assert shown(f"```yaml title='x.yaml'\ngymtrain no\n```\ngymtrain no\n{block}\ngymtrain no\n") == [
        "gymtrain watch r  # c",
        "gymtrain fetch r",
    ]


@pytest.mark.parametrize(
    "line", ["gymtrain wotch r", "gymtrain watch", "gymtrain fetch r --to x", "gymtrain suspend r s"]
)
def test_a_line_that_would_fail_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"No such|Missing|unexpected"):
        parse(line)
