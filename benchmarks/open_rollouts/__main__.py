"""The trainer's rollout side with many rollouts open at once: is one lost, does memory grow, and what does one cost?

    python -m benchmarks.open_rollouts [--rollouts 256 --seconds 5]

Two processes: the trainer's rank 0, of which all but the model is real (rank_zero.py), and a stand-in for its agents
and for its gateway's ledger (stand_in.py). Each rollout is a POST /run that is answered two minutes later with 8 turns
of 64 tokens. A warm-up with quick rollouts leads to where the worker keeps all of them open. Then it is full until the
last rollout that training needs has begun. Of the processes that rank 0 begins, all together are looked at.

Prints tables, and the same as JSON; exits with 1 where a rollout was lost, or where not as many were open at once.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from benchmarks import processes
from benchmarks.gateway_process import environment, wait_for
from benchmarks.open_rollouts.figures import Found, Reading, as_json, rows_as_table
from benchmarks.open_rollouts.load import Load
from benchmarks.report import as_table

_PORT = 18090
_MIB = 1 << 20


def measure(load: Load) -> Found:
    """Starts both processes and reads."""
    high, low = divmod(os.getpid(), 250)
    host = f"127.1.{high % 250}.{low + 1}"  # of this process alone, as the ledger's port is fixed
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = (load.to_text(), host, str(_PORT))
        stand_in = stack.enter_context(_process("benchmarks.open_rollouts.stand_in", *where))
        wait_for(f"http://{host}:{_PORT}/stats")
        arguments = (load.to_text(), folder, host, str(_PORT))
        rank_zero = stack.enter_context(_process("benchmarks.open_rollouts.rank_zero", *arguments))
        readings: list[Reading] = []
        begin: dict[str, Any] = {}
        began = time.monotonic()
        for line in _lines(rank_zero):
            if line["event"] == "begin":
                begin = line
            if line["event"] == "end":
                return Found(readings, begin["warm_steps"], begin["rollouts"], line)
            readings.append(_read(line, time.monotonic() - began, rank_zero.pid, stand_in.pid, host))
            _tell(readings[-1])
    raise RuntimeError(f"rank 0 ended before its last step (exit status {rank_zero.wait()})")


def _lines(rank_zero: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """What it says; it goes on when the next line is wanted."""
    assert rank_zero.stdout is not None
    assert rank_zero.stdin is not None
    for text in rank_zero.stdout:
        yield json.loads(text)
        rank_zero.stdin.write("\n")
        rank_zero.stdin.flush()


def _read(line: dict[str, Any], at: float, pid: int, stand_in: int, host: str) -> Reading:
    with urllib.request.urlopen(f"http://{host}:{_PORT}/stats", timeout=60) as response:
        stats = json.loads(response.read())
    return Reading(
        at=at,
        step=line.get("step", 0),
        trained=line.get("trained", 0),
        main=processes.usage(pid),
        children=processes.descendants(pid),
        trainer=processes.main_thread(pid),
        stand_in=processes.usage(stand_in),
        files=processes.open_files(pid),
        **stats,
    )


def _tell(reading: Reading) -> None:
    print(
        f"{reading.at:6.0f} s, step {reading.step}: {reading.trained} trained, {reading.open} open, "
        f"{reading.main.resident / _MIB:.0f} + {reading.children.resident / _MIB:.0f} MiB",
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    running = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True)
    with processes.ended_after(running):
        yield running


def main() -> int:
    """1 where a rollout was lost, or where not all were open at once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_rollouts", description=__doc__)
    helps = {
        "rollouts": "open at once",
        "group_size": "rollouts of a group",
        "step": "rollouts of an optimizer step (default: an eighth of --rollouts)",
        "generations": "times --rollouts that are trained after the warm-up; the last fills no other's place",
        "staleness": "spec.rollout.maxStaleness",
        "turns": "model calls of a rollout",
        "prompt": "tokens that each adds to the prompt",
        "sampled": "tokens of each",
        "warm_seconds": "that a rollout takes during the warm-up",
        "seconds": "that a rollout takes later",
        "jitter": "share of these by which one takes more or less",
        "files": "open files that the trainer is told that it has, where the kernel grants too few: it keeps two for "
        "each rollout, and needs one here (default: what the kernel grants)",
    }
    for field in fields(Load):
        default = field.default if field.name != "step" else None
        kind = field.type if callable(field.type) else str
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=default, help=helps[field.name])
    options = vars(parser.parse_args())
    options["step"] = options["step"] or max(options["rollouts"] // 8, options["group_size"])
    load = Load(**options)
    if load.rollouts % load.group_size or load.step % load.group_size:
        parser.error("--rollouts and --step must be whole groups")
    found = measure(load)
    results, rows = found.results(), found.rows()
    print(f"{as_table(results)}\n\n{rows_as_table(rows)}\n\n{json.dumps(as_json(results, rows))}")
    if found.most_open < load.rollouts:
        print("not all were open at once: does the kernel grant enough open files? see --files", file=sys.stderr)
        return 1
    return 0 if all(result.aim is None or result.value <= result.aim for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
