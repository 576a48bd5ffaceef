"""docs/environments.md: its text is written by hand; the table stands between two comments."""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.environments.outcome import VERDICTS, Outcome

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environments.md"
RECORDED = ROOT / "docs" / "recorded" / "environments.json"

_BEGIN, _END = "<!-- begin table: made by `make test-environments` -->", "<!-- end table -->"


@dataclass(frozen=True)
class Recorded:
    """What is recorded.

    Attributes:
        nemo_gym: its release.
        known: environments that the release has, by name.
        outcomes: by name.
    """

    nemo_gym: str
    known: tuple[str, ...]
    outcomes: tuple[Outcome, ...]


def outcome_of(found: dict[str, Any]) -> Outcome:
    """From JSON, where tuples are lists."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return Outcome(**values)


def load() -> Recorded:
    """What RECORDED holds."""
    found = json.loads(RECORDED.read_text())
    return Recorded(found["nemo_gym"], tuple(found["known"]), tuple(map(outcome_of, found["outcomes"])))


def save(recorded: Recorded) -> None:
    """Writes RECORDED."""
    RECORDED.write_text(json.dumps(dataclasses.asdict(recorded), indent=1) + "\n")


def write() -> None:
    """Renews the page."""
    PAGE.write_text(render(PAGE.read_text(), load()))


def is_current() -> bool:
    """Whether the page has the table that is recorded."""
    text = PAGE.read_text()
    return render(text, load()) == text


def render(text: str, recorded: Recorded) -> str:
    """The page's text with its table.

    Raises:
        ValueError: the text has no place for it.
    """
    before, found, rest = text.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{PAGE} has no lines {_BEGIN} and {_END}, between which the table goes")
    return f"{before}{_BEGIN}\n\n{_table(recorded)}\n\n{_END}{after}"


def _table(recorded: Recorded) -> str:
    counts = Counter(outcome.verdict for outcome in recorded.outcomes)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    dates = sorted({outcome.date for outcome in recorded.outcomes})
    when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
    tried = {outcome.name for outcome in recorded.outcomes}
    untried = [f"`{name}`" for name in recorded.known if name not in tried]
    share = f"{len(tried)} of {len(recorded.known)} environments were tried"
    lines = [
        f"NeMo Gym {recorded.nemo_gym}, {when}: {share}; {summary}.",
        *(["", f"Not tried: {', '.join(untried)}."] if untried else []),
        "",
        "| Environment | | Image | Tools | Needs | Config files |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, recorded.outcomes)])


def _row(outcome: Outcome) -> str:
    needs = []
    if outcome.packages:
        needs.append("packages " + ", ".join(f"`{name}`" for name in outcome.packages))
    if outcome.keys:
        needs.append("values for " + ", ".join(f"`{name}`" for name in outcome.keys))
    if outcome.note and not outcome.packages:
        needs.append(outcome.note)
    answered, played = outcome.rows
    verdict = f"runs ({answered} rows)" if outcome.verdict == "runs" else f"**{outcome.verdict}**"
    if outcome.verdict != "runs" and answered:
        verdict += f" ({answered} of {played} rows)"
    files = ", ".join(f"`{path}`" for path in (outcome.config, *outcome.beside) if path)
    cells = [outcome.name, verdict, outcome.image, "yes" if outcome.tools else "", "; ".join(needs), files]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
