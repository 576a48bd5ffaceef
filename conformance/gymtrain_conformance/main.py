"""The command line: a run, a trainer's command, and a table of what it keeps of the contract."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gymtrain_api.runs import InvalidRunError, parse_spec
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.trainer_contract import LINES
from gymtrain_conformance.checks import Outcome, Verdict, conforms, outcomes
from gymtrain_conformance.trial import TrialError, run_trial

_TAIL_LINES = 40
_EXAMPLE = "python -m gymtrain_conformance run.yaml -- python train.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: it conforms. 1: it doesn't. 2: it could not be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m gymtrain_conformance",
        description="Plays a run's servers on this machine for a trainer, and says which lines of the wiring contract "
        "it keeps (docs/own-trainer.md). The trainer has to heed the variables that replace a pod's paths.",
        usage="%(prog)s [options] RUN [-- COMMAND ...]",
        epilog="COMMAND is that of the trainer; without it, the run's spec.trainer.command is started. Example: "
        f"{_EXAMPLE}",
    )
    parser.add_argument("run", type=Path, help="file with the GymTrainingRun; its data and environments aren't used")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder (default: one without a real model)")
    parser.add_argument("--seconds", type=float, default=120.0, help="that an attempt may take (default: 120)")
    parser.add_argument("--log", action="store_true", help="print the trainer's whole log")
    own, after = _split(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(own)
    try:
        spec = read_spec(given.run)
        command = after or spec.trainer.command
        if not command:
            raise TrialError(f"{given.run} has no spec.trainer.command: give the command after --, as in {_EXAMPLE}")
        trial = run_trial(spec, command, seconds=given.seconds, model=given.model)
    except (TrialError, OSError) as error:
        print(f"cannot try the trainer: {error}", file=sys.stderr)
        return 2
    found = outcomes(trial)
    good = conforms(found, trial)
    if given.log or not good:
        lines = trial.log.splitlines()
        print("\n".join(["the trainer's log:", *(lines if given.log else lines[-_TAIL_LINES:]), ""]))
    print(table(found))
    print("the trainer conforms" if good else "the trainer does not conform")
    return 0 if good else 1


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The arguments before --, and the command after it."""
    if "--" not in arguments:
        return arguments, ()
    place = list(arguments).index("--")
    return arguments[:place], arguments[place + 1 :]


def read_spec(path: Path) -> GymTrainingRunSpec:
    """The spec of the only GymTrainingRun in a file.

    Raises:
        TrialError: there is none, or several, or it doesn't fit the types.
        OSError: the file can't be read.
    """
    try:
        documents: list[Any] = list(yaml.safe_load_all(path.read_text()))
    except yaml.YAMLError as error:
        raise TrialError(f"{path} isn't YAML: {error}") from error
    runs = [one for one in documents if isinstance(one, dict) and one.get("kind") == "GymTrainingRun"]
    if len(runs) != 1:
        raise TrialError(f"{path} has {len(runs)} GymTrainingRuns: it has to have one")
    try:
        return parse_spec(runs[0].get("spec") or {})
    except InvalidRunError as error:
        raise TrialError(f"{path}: {error}") from error


def table(found: Sequence[Outcome]) -> str:
    """One line for each outcome, and why where it is broken."""
    lines = []
    for one in found:
        mark = one.verdict.upper() if one.verdict == Verdict.BROKEN else str(one.verdict)
        lines.append(f"{mark:<10} {one.line:<22} {LINES[one.line]}")
        if one.why:
            lines.append(f"{'':<10} {'':<22} └ {one.why}")
    return "\n".join(lines)
