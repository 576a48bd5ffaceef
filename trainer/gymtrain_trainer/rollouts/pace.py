"""How far ahead of the trainer rollouts may run, and how fast they start while they fail. Pure."""

_FAILURE_PAUSE_SECONDS = 0.25  # after the first failed group, doubled at each further one
_FAILURE_PAUSE_LIMIT_SECONDS = 5.0


def samples_ahead(samples_per_step: int, sync_every_steps: int, group_size: int) -> int:
    """Samples that may be in flight or waiting at once: those of one sync interval.

    A sample that starts behind N others is used N / samples_per_step steps later, so this bound is what keeps
    staleness low when generation is faster than training. (A buffer of many steps pinned staleness at its limit.)
    """
    return max(group_size, samples_per_step * sync_every_steps)


def bound(ahead: int, *, starving: bool, version: int, max_staleness: int) -> int:
    """The bound now. Twice as much where the trainer waits for samples, because then generation is the slow part and
    more rollouts at once use vLLM better; but not before the first step, nor where the run forbids the staleness."""
    return 2 * ahead if starving and version > 1 and max_staleness > 1 else ahead


def may_start(*, in_flight: int, waiting: int, group_size: int, ahead: int, max_concurrent: int) -> bool:
    """Whether one more group of `group_size` rollouts may start.

    `in_flight`: samples of started groups; `waiting`: samples that the trainer didn't take yet.
    """
    if in_flight + waiting == 0:
        return True  # a group larger than the bounds must still be able to run
    return in_flight + waiting + group_size <= ahead and in_flight < max_concurrent


def failure_pause(consecutive_failures: int) -> float:
    """Seconds to wait before the next group when the last ones failed: a dead environment isn't hammered."""
    if consecutive_failures < 1:
        return 0.0
    return float(min(_FAILURE_PAUSE_LIMIT_SECONDS, _FAILURE_PAUSE_SECONDS * 2 ** min(consecutive_failures - 1, 16)))
