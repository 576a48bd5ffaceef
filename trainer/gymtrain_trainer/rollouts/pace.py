"""When the next group may start, so that neither the trainer nor vLLM waits, and nothing is older than it has to be.
Pure.

Three bounds, of which the lowest counts:

| bound | groups | why |
|---|---|---|
| `allowed` | begun and not trained: at most `maxStaleness` + 1 weight versions ahead of what is trained | staleness |
| `Lead` | that run or wait: as many as the trainer was seen to need | not older than need be |
| `maxConcurrent` | rollouts that run | vLLM and the environments |

`allowed` is the rule of AReaL (arXiv 2505.24298): with B groups of a weight version and the version v, no more than
(v + maxStaleness) B groups have been begun for training in all. A group is never dropped for its age: that would train
on fast tasks more often than on slow ones. What it bounds is how far ahead groups start; one of usual length is trained
at most maxStaleness versions later. With maxStaleness 0 nothing starts before the weights are there that will train on
it, and the trainer can't go on before all groups of the version are there: on-policy to the token.

A group that takes much longer than others would keep its place meanwhile, and the trainer would wait for it. One that
is late gives up its place: another one starts instead, and the late one is trained on when it ends. Late is one that
runs twice as long as quick ones do, for more versions than one of usual length may become old. Where all groups take
equally long none is late, however many versions pass.

`Lead` follows the pace of both sides by what it comes to: a trainer that waited gets as much more as it lacked, one
that left more than a step's groups waiting gets one less. More than it needs would make samples older, and vLLM,
gateway and environments slower for those that it waits for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_WAITS = 0.01  # of a step's time; less is no wait
_MORE = 1.25  # times, at most: a wait may have come from elsewhere
_SPARE = 1.5  # steps' groups that may wait
_LATE = 2.0  # times the duration of quick groups
_FAILURE_PAUSE_SECONDS = 0.25  # after the first failed group, doubled at each further one
_FAILURE_PAUSE_LIMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Bounds:
    """Numbers of a run.

    Attributes:
        group_size: rollouts.
        groups_per_step: of one optimizer step; None where a step ends at a number of tokens.
        sync_every_steps: optimizer steps of one weight version.
        max_staleness: weight versions.
        max_concurrent: rollouts.
        total: groups that this process will train on; None where that isn't known.
    """

    group_size: int
    groups_per_step: int | None
    sync_every_steps: int
    max_staleness: int
    max_concurrent: int
    total: int | None = None


@dataclass(frozen=True)
class Flow:
    """What is under way.

    Attributes:
        version: the model version that vLLM holds: 1 before the first step of this process.
        running: groups.
        running_rollouts: of them, those that haven't ended.
        late: groups of those that run which have given up their place.
        waiting: groups that the trainer hasn't taken.
        taken: groups of the step that runs.
        used: groups of steps that have ended.
        steps: that have ended.
    """

    version: int
    running: int
    running_rollouts: int
    late: int
    waiting: int
    taken: int
    used: int
    steps: int


@dataclass(frozen=True)
class StepWait:
    """How a step that has ended got its groups.

    Attributes:
        share: of its time, that the trainer waited for them.
        left: groups that still waited when it had all of its own.
    """

    share: float
    left: int


@dataclass(frozen=True)
class Lead:
    """How many groups should run or wait.

    Attributes:
        groups: the number; 0 before a step has ended.
    """

    groups: int = 0

    def after(self, wait: StepWait, step: int, bounds: Bounds) -> "Lead":
        """The next one. `step`: groups of a step."""
        if not self.groups:
            return Lead(2 * step)  # the first step had no predecessor that it could have been prepared in
        if wait.share > _WAITS:
            most = max(self.groups, _most_ahead(bounds, step))
            return Lead(min(most, math.ceil(self.groups * min(_MORE, 1 / max(1 - wait.share, 1e-9)))))
        return Lead(max(step, self.groups - 1)) if wait.left >= _SPARE * step else self


def may_start(bounds: Bounds, flow: Flow, lead: Lead) -> bool:
    """Whether one more group may start."""
    ahead = flow.running + flow.waiting
    begun = flow.used + flow.taken + ahead
    if bounds.total is not None and begun >= bounds.total:
        return False
    # Before the first step more at once would only delay it.
    if begun - flow.late >= allowed(bounds, flow) or ahead - flow.late >= (
        lead.groups or groups_per_step(bounds, flow)
    ):
        return False
    # A group larger than the bound must still be able to run.
    return not flow.running or flow.running_rollouts + bounds.group_size <= bounds.max_concurrent


def allowed(bounds: Bounds, flow: Flow) -> int:
    """Groups that this process may have begun by now."""
    step = groups_per_step(bounds, flow)
    if bounds.groups_per_step is not None:
        return (flow.version + bounds.max_staleness) * step * bounds.sync_every_steps
    # A step's groups vary: as many intervals ahead of what was used, by what a step is thought to use.
    return flow.used + _most_ahead(bounds, step)


def _most_ahead(bounds: Bounds, step: int) -> int:
    """Groups that staleness allows beyond those that were used."""
    return (1 + bounds.max_staleness) * step * bounds.sync_every_steps


def groups_per_step(bounds: Bounds, flow: Flow) -> int:
    """Of one step; where a token budget makes them vary, their mean so far, or those that this step has taken already:
    it may want one more, and would wait for it for ever if it were beyond what may begin."""
    if bounds.groups_per_step is not None:
        return bounds.groups_per_step
    if flow.steps:
        return max(1, flow.taken, math.ceil(flow.used / flow.steps))
    return flow.taken + flow.waiting + 1  # more until the first step has enough


def quick(durations: Sequence[float]) -> float:
    """Seconds of quick groups: a quarter of those that ended lately took no longer. Infinite where none has ended."""
    return sorted(durations)[(len(durations) - 1) // 4] if durations else math.inf


def is_late(bounds: Bounds, versions: int, seconds: float, quick_seconds: float) -> bool:
    """Whether a running group gives up its place.

    Args:
        bounds: of the run.
        versions: that were made since it started.
        seconds: since then.
        quick_seconds: that quick groups take.
    """
    return versions > 1 + bounds.max_staleness and seconds > _LATE * quick_seconds


def failure_pause(consecutive_failures: int) -> float:
    """Seconds to wait before the next group when the last ones failed: a dead environment isn't hammered."""
    if consecutive_failures < 1:
        return 0.0
    return float(min(_FAILURE_PAUSE_LIMIT_SECONDS, _FAILURE_PAUSE_SECONDS * 2 ** min(consecutive_failures - 1, 16)))
