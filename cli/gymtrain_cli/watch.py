"""Following a run until it ends.

On a terminal, a picture of it that is renewed; elsewhere, one line whenever something worth reading changed.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gymtrain_api.conditions import ConditionType
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_client.errors import UnavailableError, WatchDeadlineError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_POLL_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # after the API server didn't answer


def describe(status: GymTrainingRunStatus) -> str:
    """Describes the state of a run in one line: what it does, or what it waits for."""
    parts = [f"{status.state or 'Pending':<10}"]
    progress = status.progress
    end = next((kind for kind in (ConditionType.COMPLETE, ConditionType.FAILED) if status.is_true(kind)), None)
    if end is not None:
        ended = status.condition(end)
        if progress and progress.max_steps:
            parts.append(f"step {progress.step}/{progress.max_steps}")
        parts.append(ended.message if ended else "")
    elif progress and progress.step > 0:
        parts.append(f"step {progress.step}/{progress.max_steps or '?'}")
        if progress.reward is not None:
            parts.append(f"reward {progress.reward}")
        if progress.tokens_per_second is not None:
            parts.append(f"{progress.tokens_per_second} tokens/s")
        if status.weight_sync and status.weight_sync.version:
            parts.append(f"weights {status.weight_sync.version}")
        failing = status.condition(ConditionType.PROGRESSING)
        if failing and failing.status != "True":
            parts.append(failing.message)
        healthy = status.condition(ConditionType.HEALTHY)
        if healthy and healthy.status == "False":
            parts.append(f"{healthy.reason}: {healthy.message}")
    else:
        ready = [s for s in status.servers if s.ready.split("/")[0] == s.ready.split("/")[-1]]
        if status.servers:
            parts.append(f"servers {len(ready)}/{len(status.servers)} ready")
        waits = status.condition(ConditionType.PROGRESSING)
        parts.append(waits.message if waits else "waiting for the operator")
    return " · ".join(part for part in parts if part)


def follow(
    read: Callable[[], GymTrainingRunStatus],
    write: Callable[[str], None],
    deadline_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    show: Callable[[GymTrainingRunStatus, float], None] = lambda status, seconds: None,
) -> bool:
    """Writes a line at each change until the run is Complete (True) or Failed (False).

    `show` gets each status that is read, with the seconds since the beginning.

    Once the run was seen, an API server that doesn't answer is asked again until it does.

    Raises:
        WatchDeadlineError: neither happened in `deadline_seconds`.
        CliError: the run can't be read; at the first time for whatever reason, as the kubeconfig may be wrong.
    """
    begin = clock()
    seen, silence = "", ""
    while True:
        try:
            status = read()
        except UnavailableError as error:
            if not seen:
                raise
            if not silence:
                silence = f"the API server hasn't answered since {time.strftime('%H:%M:%S')}"
                write(f"[{clock() - begin:5.0f}s] {silence}, trying again: {error.reason}")
        else:
            show(status, clock() - begin)
            line = describe(status)
            if line != seen or silence:
                write(f"[{clock() - begin:5.0f}s] {line}")
            seen, silence = line, ""
            if status.is_true(ConditionType.COMPLETE):
                return True
            if status.is_true(ConditionType.FAILED):
                return False
        if clock() - begin > deadline_seconds:
            raise WatchDeadlineError(
                f"the run did not end within {deadline_seconds:.0f} s; {silence or 'it continues'}. Last seen: {seen}"
            )
        sleep(_AGAIN_SECONDS if silence else _POLL_SECONDS)


def follow_live(
    read: Callable[[], GymTrainingRunStatus], run: str, console: "Console", deadline_seconds: float
) -> bool:
    """`follow` on a terminal: a picture that is renewed; the end, and moments without an answer, are lines above it."""
    from rich.live import Live

    pace = Pace()
    with Live(console=console, refresh_per_second=4) as live:

        def show(status: GymTrainingRunStatus, seconds: float) -> None:
            live.update(picture(run, status, seconds, pace))

        def write(line: str) -> None:
            if "hasn't answered" in line:
                console.print(line)

        return follow(read, write, deadline_seconds, show=show)


class Pace:
    """How fast steps come, by those that were seen."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds_left(self, seconds: float, step: int, steps: int) -> float | None:
        """Until the last step; None where none was seen to end."""
        if self._first is None or step < self._first[1]:
            self._first = (seconds, step)
        since, from_step = self._first
        if step == from_step:
            return None
        return (seconds - since) / (step - from_step) * (steps - step)


def picture(run: str, status: GymTrainingRunStatus, seconds: float, pace: Pace) -> "RenderableType":
    """A run as a panel: how far it is, its numbers, its servers, and what it waits for."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    progress = status.progress
    parts: list[RenderableType] = [facts]
    facts.add_row("state", Text(status.state or "Pending", style=_COLOURS.get(status.state or "", "yellow")))
    if progress is not None and progress.max_steps:
        left = pace.seconds_left(seconds, progress.step, progress.max_steps)
        eta = f", {clock_time(left)} left" if left is not None and progress.step < progress.max_steps else ""
        facts.add_row("step", f"{progress.step} of {progress.max_steps}{eta}")
        parts.append(ProgressBar(total=progress.max_steps, completed=progress.step, width=60))
    numbers = {
        "reward": progress.reward if progress else None,
        "validation": _validation(status),
        "speed": f"{progress.tokens_per_second} tokens/s" if progress and progress.tokens_per_second else None,
        "weights": status.weight_sync.version if status.weight_sync else None,
    }
    for name, value in numbers.items():
        if value is not None:
            facts.add_row(name, Text(str(value)))
    if status.servers:
        ready = sum(one.ready.split("/")[0] == one.ready.split("/")[-1] for one in status.servers)
        facts.add_row("servers", f"{ready} of {len(status.servers)} ready")
    for condition in status.conditions:
        if _is_news(condition.type, condition.status):
            facts.add_row(condition.type, Text(condition.message or condition.reason))
    return Panel(Group(*parts), title=Text(run), subtitle=clock_time(seconds), title_align="left", width=100)


_COLOURS = {"Training": "green", "Complete": "bold green", "Failed": "bold red", "Suspended": "dim"}


def _is_news(kind: str, value: str) -> bool:
    if kind in (ConditionType.COMPLETE, ConditionType.FAILED):
        return value == "True"
    return kind == ConditionType.PROGRESSING or (kind == ConditionType.HEALTHY and value == "False")


def _validation(status: GymTrainingRunStatus) -> str | None:
    progress = status.progress
    if progress is None or progress.validation_reward is None:
        return None
    text = f"{progress.validation_reward} at step {progress.validation_step}"
    best = progress.best_validation_reward
    return f"{text}, best {best} at step {progress.best_step}" if best is not None else text


def clock_time(seconds: float) -> str:
    """Such as 1:02:03, or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
