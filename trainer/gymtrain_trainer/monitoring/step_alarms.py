"""When the numbers of a step make its samples doubtful, and when a step is overdue. Pure.

| alarm | the usual | limit | raised |
|---|---|---|---|
| KLHigh | 0; 0.002 to 0.006 a version behind | (1 + b) x max(0.0075, 4 x median) | eighth step in a row |
| KLHigh, far above | | four times that | second step in a row |
| KLHigh, steps 2 to 10 of a run | up to 0.025 a version behind | ten times that | the same |
| RatioOff | 1 | distance from 1 of max(0.02 x (1 + b), 4 x median) | second step in a row |
| both, first step on fresh samples | exactly 0 and 1 | 0.002 and 0.02 | at once |
| the same, vLLM in half precision | 0.002 to 0.005 from rounding | 0.01 and 0.02 | at once |
| Stalled | the median of the last steps | 10 x the median, at least 120 s | by the watchdog |
| Stalled, writing a checkpoint | | as long as that takes later, but at most 1,800 s | by the watchdog |

b, steps behind: how many optimizer steps the weights moved since the samples were drawn. KL grows with it in a healthy
run, so its limit does; a vLLM that kept an old lm_head was seen at 0.017 one version behind. The ratio is the mean
importance weight, which is 1 in expectation at any staleness, but scatters more.

The first steps of a run move the weights further than later ones of the same learning rate: an optimizer that has seen
one gradient takes every parameter a whole step in its direction. The quickstart, without warm-up, is at 0.05 one
version behind in step 5. Later, too, a run may learn fast for a few steps: on GPUs the quickstart was above the limit
for up to four steps in a row, around step 17 (docs/recorded/gpu/cluster.md). Wrong weights stay wrong.

A grammar (tool_choice required, JSON schemas) leaves vLLM's log-probabilities renormalised over the tokens that it
allows: they are above the trainer's, however exact the weights. The messages say so where the step has such samples.

median: of the run's own last 50 values (KL per 1 + b, distance of the ratio), so that a run with a high learning rate
has its own usual. Only values below the limit enter it: one that was wrong from the start never becomes usual. Each
alarm clears itself at the first value below its limit.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gymtrain_api.wiring import AlarmReason

_WINDOW = 50  # steps of the run's own values
_TIMES = 4.0
_KL = 0.0075  # per step behind
_EARLY_STEPS = 10
_EARLY_TIMES = 10.0
_RATIO = 0.02
_FRESH_KL = 0.002
_FRESH_KL_HALF = 0.01
_FRESH_RATIO = 0.02
_IN_A_ROW = 2
_KL_IN_A_ROW = 8
_FAR = 4.0  # times the limit
_STALL_TIMES = 10.0
_STALL_SECONDS = 120.0
_SAVE_SECONDS = 1800.0  # 8 billion parameters with their optimizer took more than two minutes on one disk


@dataclass(frozen=True)
class Numbers:
    """What one step tells about its samples."""

    kl: float | None
    ratio: float | None
    staleness: float  # mean, in weight versions
    first: bool = False  # of this process: nothing was trained since its first sync
    step: int = _EARLY_STEPS + 1  # of the run
    constrained: float = 0.0  # share of the samples with a turn that a grammar held
    dtype: str | None = "float32"  # of vLLM's weights; None where it doesn't say, and then as of half precision


class _Row:
    """Steps in a row that were above a limit."""

    def __init__(self) -> None:
        self._steps = 0

    def count(self, value: float, limit: float) -> int:
        """How many, with this one."""
        self._steps = 0 if value <= limit else self._steps + 1  # NaN is above
        return self._steps


class SampleAlarms:
    """Judges each step by the ones before it."""

    def __init__(self, weight_sync_steps: int = 1) -> None:
        """`weight_sync_steps`: optimizer steps between two weight versions."""
        self._sync_steps = weight_sync_steps
        self._kl: deque[float] = deque(maxlen=_WINDOW)
        self._ratio: deque[float] = deque(maxlen=_WINDOW)
        self._kl_above, self._kl_far, self._ratio_off = _Row(), _Row(), _Row()

    def look(self, numbers: Numbers) -> dict[AlarmReason, str | None]:
        """The alarms that this step settles: a message raises one, None clears it."""
        fresh = numbers.first and numbers.staleness <= 0
        behind = 0.0 if fresh else max(0.0, numbers.staleness) * self._sync_steps + self._sync_steps - 1
        verdict: dict[AlarmReason, str | None] = {}
        if numbers.kl is not None:
            usual = _TIMES * statistics.median(self._kl) if self._kl else 0.0
            settled = (1 + behind) * max(_KL, usual)
            early = (1 + behind) * _KL * _EARLY_TIMES if numbers.step <= _EARLY_STEPS else 0.0
            exact = _FRESH_KL if numbers.dtype == "float32" else _FRESH_KL_HALF
            limit = exact if fresh else max(settled, early)
            above = self._kl_above.count(numbers.kl, limit)
            far = self._kl_far.count(numbers.kl, max(limit, _FAR * settled))
            if not above:
                verdict["KLHigh"] = None
            elif fresh or above >= _KL_IN_A_ROW or far >= _IN_A_ROW:
                verdict["KLHigh"] = (
                    f"KL between the weights that sampled and those that train is {numbers.kl:.4g}, above "
                    f"{limit:.4g} for samples {behind:.1f} steps behind: vLLM may hold other weights than it says, or "
                    "the learning rate is high for this staleness (rollout.maxStaleness, trainer.config.learning_rate)"
                    + _grammar(numbers.constrained)
                )
            if numbers.kl <= min(limit, settled):
                self._kl.append(numbers.kl / (1 + behind))
        if numbers.ratio is not None:
            distance = abs(numbers.ratio - 1)
            usual = _TIMES * statistics.median(self._ratio) if self._ratio else 0.0
            limit = _FRESH_RATIO if fresh else max(_RATIO * (1 + behind), usual)
            above = self._ratio_off.count(distance, limit)
            if not above:
                verdict["RatioOff"] = None
            elif fresh or above >= _IN_A_ROW:
                verdict["RatioOff"] = (
                    f"the mean probability ratio is {numbers.ratio:.4f}, further from 1 than {limit:.3g} for samples "
                    f"{behind:.1f} steps behind: vLLM and the trainer disagree about log-probabilities (weights, "
                    "temperature, dtype)" + _grammar(numbers.constrained)
                )
            if distance <= limit:
                self._ratio.append(distance)
        return verdict


def _grammar(share: float) -> str:
    """What constrained samples do to both numbers; empty if there are none."""
    if not share:
        return ""
    return (
        f". A grammar held turns of {max(1, round(100 * share))} % of these samples (tool_choice required or a named "
        "function, a JSON schema): vLLM's log-probabilities then count only the allowed tokens, the trainer's "
        "all, which alone raises the KL and lowers the ratio. Leave the choice to the model (tool_choice auto, no "
        "response format)"
    )


def stall_limit(durations: Sequence[float], before_first_step: float, saving: float = 0.0) -> float:
    """Seconds without a step after which a run counts as stalled.

    `durations`: of the last steps; without any, `before_first_step` counts (a first rollout may take that long).
    `saving`: seconds since the last step in which a checkpoint was written.
    """
    usual = _STALL_TIMES * statistics.median(durations) if durations else before_first_step
    return max(_STALL_SECONDS, usual) + min(saving, _SAVE_SECONDS)
