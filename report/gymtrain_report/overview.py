"""What the page shows above its rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gymtrain_report.folder import RunFolder


def overview(
    folder: RunFolder, rows: Iterable[Mapping[str, Any]], hops: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Curves and counts.

    Args:
        folder: of the run.
        rows: of all recorded rollouts: outcome, reason and agent; `count` where a row stands for several.
        hops: where their seconds went, by step and by agent (`hops.Means`).
    """
    ends: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        ends[row["outcome"], row.get("reason") or "", row["agent"]] += row.get("count", 1)
    return {
        "run": folder.run,
        "steps": folder.steps(),
        "evaluations": folder.evaluations(),
        "ends": [
            {"outcome": outcome, "reason": reason, "agent": agent, "count": count}
            for (outcome, reason, agent), count in sorted(ends.items())
        ],
        "hops": hops,
        "agents": sorted({agent for _, _, agent in ends}),
    }
