"""Which rollouts a file of bounded size shows: as many of each step as fit, whole groups, the newest steps first."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gymtrain_report.folder import RunFolder, conversation, last_words
from gymtrain_report.hops import Means
from gymtrain_report.tokens import tokens_of

_TEXT = 20_000  # characters of one text of a conversation


@dataclass(frozen=True)
class Chosen:
    """
    Attributes:
        rollouts: as the page has them, in order.
        ends: outcome, reason and agent of all that are recorded.
        hops: where the seconds of all of them went (`Means.told`).
    """

    rollouts: list[dict[str, Any]]
    ends: list[dict[str, Any]]
    hops: dict[str, list[dict[str, Any]]]

    @property
    def sample(self) -> str:
        """What the page says of its choice."""
        if len(self.rollouts) == len(self.ends):
            return f"All {len(self.ends):,} recorded rollouts."
        return (
            f"{len(self.rollouts):,} of the {len(self.ends):,} recorded rollouts: as many whole groups of each step as "
            "the file has room for."
        )


def choose(folder: RunFolder, max_bytes: int) -> Chosen:
    """Rollouts whose JSON takes at most `max_bytes`."""
    files = folder.files()
    chosen: list[list[dict[str, Any]]] = []
    ends: list[dict[str, Any]] = []
    means, left = Means(), max_bytes
    for place, file in enumerate(reversed(files)):
        rows = folder.rollouts(file)
        ends += [{name: row.get(name) for name in ("outcome", "reason", "agent")} for row in rows]
        means.add(rows)
        share = left // (len(files) - place)
        taken: list[dict[str, Any]] = []
        for group in _groups(folder, rows):
            size = sum(len(json.dumps(one)) for one in group)
            if size <= share:
                taken += group
                share -= size
                left -= size
        chosen.append(taken)
    rollouts = list(itertools.chain.from_iterable(reversed(chosen)))
    for number, one in enumerate(rollouts):
        one["id"] = number
    return Chosen(rollouts, ends, means.told())


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the page has it: with its conversation and its model calls as objects, and the end of that."""
    told = conversation(row)
    return {name: value for name, value in row.items() if name != "conversation"} | {
        "preview": last_words(told) or row.get("error") or "",
        "calls": json.loads(row.get("calls") or "[]"),
        "conversation": told,
    }


def _groups(folder: RunFolder, rows: Any) -> Iterator[list[dict[str, Any]]]:
    for _, group in itertools.groupby(rows, lambda row: (row["outcome"], row["group"])):
        told = [_clipped(shown(row)) for row in group]
        yield [one | {"sampled": sampled} if (sampled := tokens_of(folder, one)) else one for one in told]


def _clipped(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT:
        return f"{value[:_TEXT]} [… {len(value) - _TEXT:,} more characters in the records]"
    if isinstance(value, dict):
        return {key: _clipped(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_clipped(one) for one in value]
    return value
