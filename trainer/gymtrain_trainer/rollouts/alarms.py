"""Alarms about lost rollouts that need a fix by the user. Pure except for the clock.

| alarm | raised | cleared by |
|---|---|---|
| EnvironmentFailing | 3 groups of an agent in a row failed, the first a minute ago | its next group with enough left |
| NoLedgerEntry | a row was given up, as no gateway pod knew its calls each time | 16 known groups in a row |

A group failed if so many of its rollouts were lost that it was dropped. One that is trained with what is left of it
worked: its losses are in the metrics and in the status. A pod that is replaced makes the groups of less than a minute
fail, and raises nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_GROUPS = 3
_SECONDS = 60.0
_NAMED = 3  # agents of one message
_KNOWN_IN_A_ROW = 16


@dataclass(frozen=True)
class _Failing:
    """An agent whose last groups failed."""

    groups: int
    since: float  # seconds since the epoch
    error: str  # the last one


class Environments:
    """Which agents' rollouts always fail."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self._clock = clock
        self._failing: dict[str, _Failing] = {}

    def failed(self, agent: str, error: str) -> None:
        """A group of the agent was dropped, because too few of its rollouts were left."""
        before = self._failing.get(agent) or _Failing(0, self._clock(), error)
        self._failing[agent] = _Failing(before.groups + 1, before.since, error)

    def worked(self, agent: str) -> None:
        """Enough rollouts of a group ended well, whatever became of the group."""
        self._failing.pop(agent, None)

    def message(self) -> str | None:
        """What to say of the agents that always fail; None if there is none."""
        now = self._clock()
        named = [
            f"every rollout group of agent {agent} has failed since "
            f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(one.since))}: {one.error}"
            for agent, one in sorted(self._failing.items())
            if one.groups >= _GROUPS and now - one.since >= _SECONDS
        ]
        if len(named) > _NAMED:
            named[_NAMED:] = [f"and {len(named) - _NAMED} more agents"]
        return "; ".join(named) or None


class KnownCalls:
    """Whether rows are lost because no gateway pod knows which weights sampled their calls."""

    def __init__(self) -> None:
        self._rows = 0  # given up since the alarm was raised
        self._known = 0  # groups in a row
        self._why = ""

    def given_up(self, why: str) -> None:
        """A row was drawn as often as it may be."""
        self._rows += 1
        self._why = why

    def group(self, *, known: bool) -> None:
        """A group's calls were asked for."""
        self._known = self._known + 1 if known else 0
        if self._known >= _KNOWN_IN_A_ROW:
            self._rows = 0

    def message(self) -> str | None:
        """The alarm's message; None if nothing is lost."""
        if not self._rows:
            return None
        return f"rows given up, as it is unknown which weights sampled their model calls: {self._rows}. {self._why}"
