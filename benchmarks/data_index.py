"""`python -m benchmarks.data_index [--gigabytes 10] [--checked 1]`: indexing a large JSONL file, in flat memory.

Needs the environment of the Gym image: `uv run --extra gym --extra gym-swe --group dev`. The rows are those of NeMo
Gym's workplace_assistant and mcqa examples, over and over, each with a number of its own. Two passes are measured, each
in a process of its own: what a trainer pod's data container does (`index`), and what preflight does, which also checks
each request against NeMo Gym's schema (`check`; on `--checked` gigabytes). Prints a row of a table for each.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gymtrain_gym.datasets.preparation import index_rows
from gymtrain_gym.datasets.rows import RowReader, responses_schema

AGENT = "agent"
EXAMPLES = ("workplace_assistant", "mcqa")


def write(file: Path, size: int) -> int:
    """Writes at least `size` bytes of rows; returns how many rows."""
    import nemo_gym

    folder = Path(nemo_gym.PARENT_DIR) / "resources_servers"
    rows = [
        json.loads(line)
        for name in EXAMPLES
        for line in (folder / name / "data/example.jsonl").read_text().splitlines()
    ]
    heads = [json.dumps({**row, "agent_ref": {"type": "responses_api_agents", "name": AGENT}})[:-1] for row in rows]
    written = 0
    with file.open("wb", buffering=2**20) as output:
        for number in itertools.count():
            written += output.write(f'{heads[number % len(heads)]}, "number": {number}}}\n'.encode())
            if written >= size:
                return number + 1
    raise AssertionError("unreachable")


def measure(file: Path, schema: bool) -> None:
    """Indexes `file` in this process and prints what it took."""
    reader = RowReader({AGENT}, None, responses_schema() if schema else None)
    before, started = os.times(), time.monotonic()
    found = index_rows(file, file.with_suffix(".offsets"), reader.agent_of)
    seconds, after = time.monotonic() - started, os.times()
    assert not found.problems, found.problems[0]
    processor = after.user + after.system - before.user - before.system
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {'check' if schema else 'index'} | {file.stat().st_size / 1e9:.1f} GB | {found.rows} | {seconds:.0f} s | "
        f"{processor:.0f} s | {file.stat().st_size / 1e6 / processor:.0f} MB | {peak:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    """Writes the files, measures, and removes them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gigabytes", type=float, default=10)
    arguments.add_argument("--checked", type=float, default=1)
    arguments.add_argument("--folder", type=Path, default=None, help="where there is room")
    arguments.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--schema", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        return measure(given.measure, given.schema)
    print("| pass | file | rows | wall clock | processor | a second of it | memory, at most |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for schema, size in ((False, given.gigabytes / 100), (False, given.gigabytes), (True, given.checked)):
            file = Path(folder) / "rows.jsonl"
            write(file, int(size * 1e9))
            more = ["--schema"] if schema else []
            command = [sys.executable, "-m", "benchmarks.data_index", "--measure", str(file), *more]
            subprocess.run(command, check=True)
    return None


if __name__ == "__main__":
    main()
