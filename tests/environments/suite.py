"""Trying environments one after the other, each in the first image that has its packages."""

import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from tests.environments import images, page
from tests.environments.catalogue import Environment, environments
from tests.environments.images import Image
from tests.environments.outcome import Outcome, note
from tests.environments.page import RECORDED, Recorded

SECONDS = 3000.0  # of one environment, on a machine that has other work


def run(names: Sequence[str], logs: Path | None, *, untried: bool = False) -> int:
    """Tries the named environments, or all, and records each outcome as it comes; the exit code.

    Args:
        names: folders of resources_servers.
        logs: where the servers' logs are kept, in a folder per environment.
        untried: leave out what something is recorded of, as after a trial of all that was ended early.
    """
    known = environments()
    unknown = set(names) - {environment.name for environment in known}
    if unknown:
        print(f"NeMo Gym has no environment {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [environment for environment in known if not names or environment.name in names]
    if untried and RECORDED.exists():
        recorded = {outcome.name for outcome in page.load().outcomes}
        chosen = [environment for environment in chosen if environment.name not in recorded]
    pythons = {image: images.python(image) for image in images.IMAGES}
    for number, environment in enumerate(chosen, 1):
        outcome = best(environment, lambda tried, image: _tried(tried, image, pythons[image], logs))
        print(
            f"{number}/{len(chosen)}  {outcome.name}: {outcome.verdict} ({outcome.image})  {outcome.note}", flush=True
        )
        _record(outcome, {environment.name for environment in known})
    return 0


def best(environment: Environment, trial: Callable[[Environment, Image], Outcome]) -> Outcome:
    """Of the first image that has the packages, or of the last if none has."""
    for image in images.IMAGES:
        outcome = trial(environment, image)
        if outcome.verdict != "needs packages":
            break
    return outcome


def _tried(environment: Environment, image: Image, python: str, logs: Path | None) -> Outcome:
    """In a process of its own, which can't take others with it."""
    command = [python, "-m", "tests.environments.trial", environment.name]
    command += [str(logs / environment.name)] if logs else []
    config = environment.configs[0] if environment.configs else ""
    base = Outcome(environment.name, config, "fails", image=image.name, others=environment.others)
    try:
        ended = run_with_children(command, SECONDS)
    except subprocess.TimeoutExpired:
        return dataclasses.replace(base, note=f"has not ended after {SECONDS:g} s")
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        return dataclasses.replace(base, note=note(ended.stderr.strip().splitlines()[-1] if ended.stderr else "died"))
    return dataclasses.replace(page.outcome_of(json.loads(lines[-1])), image=image.name)


def run_with_children(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a command; the servers that it started end with it.

    Raises:
        subprocess.TimeoutExpired: it hasn't ended in time.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _record(outcome: Outcome, known: set[str]) -> None:
    """Beside what is recorded of others; what NeMo Gym no longer has goes."""
    before = page.load().outcomes if RECORDED.exists() else ()
    kept = [one for one in before if one.name != outcome.name and one.name in known]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    outcomes = sorted([*kept, dataclasses.replace(outcome, date=today)], key=lambda one: one.name)
    made = Recorded(metadata.version("nemo-gym"), tuple(sorted(known)), tuple(outcomes))
    page.save(made)
    page.write()
