"""`python -m tests.environments run [NAME ...] | page [--check]`."""

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

from tests.environments import page
from tests.environments.outcome import Outcome, note
from tests.environments.page import RECORDED, Recorded

SECONDS = 600.0  # of one environment


def _run(names: Sequence[str]) -> int:
    from tests.environments.catalogue import environments  # needs NeMo Gym, as `page` doesn't

    known = environments()
    unknown = set(names) - {environment.name for environment in known}
    if unknown:
        print(f"NeMo Gym has no environment {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [environment for environment in known if not names or environment.name in names]
    for number, environment in enumerate(chosen, 1):
        outcome = _tried(environment.name, environment.config or "", environment.others)
        print(f"{number}/{len(chosen)}  {outcome.name}: {outcome.verdict}  {outcome.note}", flush=True)
        _record(outcome, {environment.name for environment in known})
    return 0


def _tried(name: str, config: str, others: tuple[str, ...]) -> Outcome:
    """In a process of its own, which can't take others with it."""
    command = [sys.executable, "-m", "tests.environments.trial", name]
    base = Outcome(name, config, "fails", others=others)
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return dataclasses.replace(base, note=f"has not ended after {SECONDS:g} s")
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        return dataclasses.replace(base, note=note(ended.stderr.strip().splitlines()[-1] if ended.stderr else "died"))
    return page.outcome_of(json.loads(lines[-1]))


def _record(outcome: Outcome, known: set[str]) -> None:
    """Beside what is recorded of others; what NeMo Gym no longer has goes."""
    before = page.load().outcomes if RECORDED.exists() else ()
    kept = [one for one in before if one.name != outcome.name and one.name in known]
    made = Recorded(
        metadata.version("nemo-gym"),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        len(known),
        tuple(sorted([*kept, outcome], key=lambda one: one.name)),
    )
    page.save(made)
    page.write()


def main() -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description="Tries NeMo Gym's environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start environments, play their example rows, and renew the page")
    run.add_argument("names", nargs="*", metavar="NAME", help="a folder of resources_servers (default: all)")
    made = commands.add_parser("page", help="renew docs/environments.md from what is recorded")
    made.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    options = parser.parse_args()
    if options.command == "run":
        return _run(options.names)
    if not options.check:
        page.write()
        return 0
    if page.is_current():
        return 0
    print("docs/environments.md is out of date: run `make generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
