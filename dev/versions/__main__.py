"""`python -m dev.versions run [RELEASE ...] [--keep] | page [--check] | lock | list`."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence

from dev.report import DevError, say
from dev.settings import Settings
from dev.versions import checks, environment, page, trials
from dev.versions.environment import Environments
from dev.versions.matrix import CHECKS, Release, chosen
from dev.versions.trials import Outcome, Trial


def _run(names: Sequence[str], *, keep: bool) -> int:
    releases = chosen(names)
    environments = Environments(Settings())
    say(f"{len(releases)} releases of vLLM, some ten minutes each; logs are in {environments.logs}")
    done: list[Trial] = []
    failed: list[str] = []
    for number, release in enumerate(releases):
        try:
            done.append(_try(environments, release))
        except DevError as error:  # it says nothing about the release, so nothing is written down
            say(f"vLLM {release.vllm}: {error.render()}")
            failed.append(release.vllm)
        else:
            trials.save(done[-1])
            page.write()
        if not keep:
            environments.remove(release, but_wheels_of=next(iter(releases[number + 1 :]), None))
    for one in done:
        outcomes = (f"{name}: {outcome}" for name, outcome in one.checks.items())
        print(f"{one.vllm:8} torch {one.torch:8}", *outcomes, sep="  ")
        if any(outcome.failed for outcome in one.checks.values()):
            failed.append(one.vllm)
    if failed:
        raise DevError(
            f"gymtrain doesn't work with vLLM {', '.join(failed)}, or couldn't be tried with it",
            fix=f"see above, and the logs in {environments.logs}",
        )
    return 0


def _try(environments: Environments, release: Release) -> Trial:
    """Raises DevError where there is no environment to try it in."""
    environments.make(release)
    found: dict[str, Outcome] = {}
    for check in CHECKS:
        outcome = found[check.name] = checks.run(environments, release, check)
        took = f" in {outcome.seconds} s" if check.tests else ""
        say(f"vLLM {release.vllm}: {check.name}: {outcome}{took}{f' ({outcome.note})' if outcome.note else ''}")
    transformers = environments.packages(release)["transformers"]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Trial(release.vllm, release.torch, transformers, trials.machine(), today, found)


def main() -> int:
    """Parse, run, and turn an expected error into a message."""
    parser = argparse.ArgumentParser(prog="python -m dev.versions", description="Tries gymtrain with releases of vLLM.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="try the releases named, or all, and write down how it went")
    run.add_argument("names", nargs="*", metavar="RELEASE", help="such as 0.25")
    run.add_argument("--keep", action="store_true", help="leave the environments in the cache: 3 GB each")
    commands.add_parser("page", help="renew docs/versions.md").add_argument("--check", action="store_true")
    commands.add_parser("lock", help="renew uv.lock after a change of pyproject.toml")
    arguments = parser.parse_args()
    os.umask(0o022)
    try:
        match arguments.command:
            case "run":
                return _run(arguments.names, keep=arguments.keep)
            case "page":
                (page.check if arguments.check else page.write)()
            case "lock":
                environment.lock()
    except DevError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the release that was tried is not written down", file=sys.stderr)
        return 130
    return 0


sys.exit(main())
