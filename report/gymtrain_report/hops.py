"""Where rollouts' seconds went: means over those for training of which it is known, by step and by agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HOPS = ("slot_s", "earlier_s", "start_s", "model_s", "queue_s", "vllm_s", "tools_s", "verify_s")
_KEYS = ("step", "agent")


class Means:
    """Gathers them row by row."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[Any, list[float]]] = {key: {} for key in _KEYS}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes rollouts as they are recorded."""
        for row in rows:
            if row.get("outcome") == "evaluated" or row.get("model_s") is None:
                continue
            for key, sums in self._sums.items():
                found = sums.setdefault(row[key], [0.0] * (1 + len(HOPS)))
                found[0] += 1
                for place, name in enumerate(HOPS, start=1):
                    found[place] += row.get(name) or 0.0

    def told(self) -> dict[str, list[dict[str, Any]]]:
        """For each of step and agent, rows of it, the rollouts that it has (`count`), and the mean of each hop."""
        return {key: [_row(key, value, sums[value]) for value in sorted(sums)] for key, sums in self._sums.items()}


def _row(key: str, value: Any, sums: list[float]) -> dict[str, Any]:
    count, *seconds = sums
    means = (round(one / count, 3) for one in seconds)
    return {key: value, "count": int(count), **dict(zip(HOPS, means, strict=True))}
