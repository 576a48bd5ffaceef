"""Runs push.py as a process, from the trainer and from preflight: with a deadline, and never with an exception."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.push import unprefixed

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Pushed:
    """How it ended. `said`: where the model is, or why it isn't there. `refused`: another try would end as this one."""

    done: bool
    said: str
    refused: bool = False


def run_push(
    *arguments: str, seconds: float, stop: Callable[[], bool] = lambda: False, environ: Mapping[str, str] = os.environ
) -> Pushed:
    """Runs it to its end, or until `stop` says so."""
    # Not torchrun's: the process is none of the group's.
    plain = {name: value for name, value in unprefixed(environ).items() if not name.startswith("TORCHELASTIC_")}
    command = [sys.executable, "-m", "gymtrain_trainer.push", *arguments]
    try:
        process = subprocess.Popen(command, env=plain, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        return Pushed(False, str(error))
    ends = time.monotonic() + seconds
    while True:
        try:
            output, _ = process.communicate(timeout=_LOOK_SECONDS)
            break
        except subprocess.TimeoutExpired:
            why = "the pod was asked to end" if stop() else f"it took longer than {seconds:g} s"
            if stop() or time.monotonic() > ends:
                process.kill()
                process.communicate()
                return Pushed(False, why)
    lines = output.strip().splitlines()
    said = lines[-1] if lines else f"the process ended with exit code {process.returncode}"
    return Pushed(process.returncode == ExitCode.OK, said, process.returncode == ExitCode.REFUSED)
