"""Collects all mistakes in the user's input."""

from collections.abc import Iterable
from difflib import get_close_matches

from gymtrain_api.wiring import Finding

MAX_LISTED = 8


class Findings:
    """The findings of one preflight, and its warnings, which make no finding."""

    def __init__(self) -> None:
        self.items: list[Finding] = []
        self.warnings: list[Finding] = []

    def add(self, where: str, message: str) -> None:
        self.items.append(Finding(where=where, message=message))

    def warn(self, where: str, message: str) -> None:
        self.warnings.append(Finding(where=where, message=message))

    def __bool__(self) -> bool:
        return bool(self.items)


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint after an unknown `name`: the nearest valid one, or what there is."""
    known = sorted(set(choices))
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"the nearest is {near[0]!r}"
    if not known:
        return "there is none"
    listed = ", ".join(known[:MAX_LISTED])
    return f"there is {listed}" + (f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else "")
