"""The dashboards of the chart: `python -m dev.dashboards [--check]`."""

import difflib
import json
import sys
from collections.abc import Callable, Mapping

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dev.dashboards import operator, run
from dev.settings import REPOSITORY

FOLDER = REPOSITORY / "charts" / "gymtrain" / "files" / "dashboards"
DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = {"operator": operator.dashboard, "run": run.dashboard}


def text(dashboard: Dashboard) -> str:
    """A dashboard as Grafana imports it."""
    return json.dumps(dashboard.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the files, or compares them."""
    code = 0
    for name, make in DASHBOARDS.items():
        path, wanted = FOLDER / f"{name}.json", text(make())
        if "--check" not in arguments:
            path.write_text(wanted)
            continue
        found = path.read_text() if path.exists() else ""
        if found != wanted:
            code = 1
            lines = difflib.unified_diff(found.splitlines(), wanted.splitlines(), "committed", "wanted", lineterm="")
            print("\n".join(lines))
            print(f"{path.name} is not what dev/dashboards says: run `make generate`", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
