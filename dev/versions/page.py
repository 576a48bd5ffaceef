"""The tables of docs/versions.md. Its text is written by hand; a table stands between two comments that name it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from dev import files
from dev.report import DevError
from dev.settings import REPOSITORY
from dev.versions.matrix import CHECKS
from dev.versions.trials import Trial, load

PAGE = REPOSITORY / "docs" / "versions.md"


def render(text: str, trials: Sequence[Trial]) -> str:
    """The page with its tables as the trials say.

    Raises:
        DevError: the text has no place for a table.
    """
    tables: tuple[tuple[str, Callable[[], str]], ...] = (("cpu", lambda: _of_cpus(trials)), ("checks", _of_checks))
    for name, table in tables:
        begin, end = f"<!-- begin {name}: made by `make test-versions` -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise DevError(f"{PAGE} has no lines {begin} and {end}, between which a table goes")
        text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    return text


def write() -> None:
    """Renews the page."""
    files.write(PAGE, render(PAGE.read_text(), load()))


def check() -> None:
    """Raises DevError where the page isn't as the trials say."""
    text = PAGE.read_text()
    if changes := "\n".join(difflib.unified_diff(text.splitlines(), render(text, load()).splitlines(), lineterm="")):
        raise DevError(f"{PAGE.relative_to(REPOSITORY)} is out of date:\n{changes}", fix="make generate")


def _of_cpus(trials: Sequence[Trial]) -> str:
    names = [check.name for check in CHECKS]
    head = ["vLLM", "torch", "transformers", *names, "date", "machine", "note"]
    return _table(head, (_row(trial, names) for trial in trials))


def _row(trial: Trial, names: Sequence[str]) -> list[str]:
    outcomes = [trial.checks.get(name) for name in names]
    notes = [
        f"{name}: {outcome.note}"
        for name, outcome in zip(names, outcomes, strict=True)
        if outcome is not None and outcome.failed
    ]
    cells = ["not run" if outcome is None else str(outcome) for outcome in outcomes]
    return [
        *(trial.vllm, trial.torch, trial.transformers, *cells, trial.date, trial.machine),
        "; ".join(notes),
    ]


def _of_checks() -> str:
    return _table(
        ["Check", "What it tells", "Tests"],
        ([check.name, check.what, "<br>".join(f"`{test}`" for test in check.tests)] for check in CHECKS),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
