"""`python -m tests.environments run [--untried] [--logs FOLDER] [NAME ...] | page [--check]`."""

import argparse
import sys
from pathlib import Path

from tests.environments import page


def main() -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description="Tries NeMo Gym's environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start environments, play their example rows, and renew the page")
    run.add_argument("names", nargs="*", metavar="NAME", help="a folder of resources_servers (default: all)")
    run.add_argument("--untried", action="store_true", help="only what nothing is recorded of")
    run.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the servers' logs below it")
    made = commands.add_parser("page", help="renew docs/environments.md from what is recorded")
    made.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    options = parser.parse_args()
    if options.command == "run":
        from tests.environments import suite  # needs NeMo Gym, as the page doesn't

        return suite.run(options.names, options.logs, untried=options.untried)
    if not options.check:
        page.write()
        return 0
    if page.is_current():
        return 0
    print("docs/environments.md is out of date: run `make generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
