"""Following a run until it ends: one line whenever something worth reading changed."""

import time
from collections.abc import Callable

from gymtrain_api.conditions import ConditionType
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_cli.errors import UnavailableError, WatchDeadlineError

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
) -> bool:
    """Writes a line at each change until the run is Complete (True) or Failed (False).

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
