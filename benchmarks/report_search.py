"""The live report on a large run: how long its index takes, what it needs, and how long a search does.

    PYTHONPATH=report:. python -m benchmarks.report_search

Makes 100,000 rollouts in 200 steps as Parquet, serves them in a process of its own as `gymtrain report --live` does in
the trainer's pod (with 1 GiB of memory at most), and asks over HTTP, as the page does.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from benchmarks.processes import ended_after

_WORDS = 30_000
_MEMORY_MIB = 1024
_DEADLINE = 900.0
_QUERIES: dict[str, dict[str, str]] = {
    "all, newest first": {},
    "a rare word": {"q": "w29998"},
    "a frequent word": {"q": "w1 w2"},
    "a letter": {"q": "w"},
    "two characters that thousands of words begin with": {"q": "w1"},
    "two words": {"q": "w10 w200"},
    "the beginning of a word": {"q": "w390"},
    "lost ones of an agent": {"outcome": "lost", "agent": "agent-0"},
    "highest reward, a word": {"q": "w17", "sort": "reward"},
    "a step": {"step": "100"},
}


def _said(rng: random.Random, words: int) -> str:
    """As in texts, the word of rank n has the share 1/n."""
    return " ".join(f"w{int(_WORDS ** rng.random())}" for _ in range(words))


def _rows(rng: random.Random, step: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        outcome = "lost" if number % 50 == 0 else "trained"
        call = {"type": "function_call", "name": "book", "arguments": json.dumps({"to": _said(rng, 5)})}
        answer = {"type": "message", "role": "assistant", "content": _said(rng, 120)}
        told = {"input": [{"role": "user", "content": _said(rng, 80)}], "tools": [], "output": [call, answer]}
        yield {
            "step": step,
            "outcome": outcome,
            "reason": "timeout" if outcome == "lost" else "",
            "error": "",
            "agent": f"agent-{number % 10}",
            "group": step * 100 + number // 16,
            "rollout": number % 16,
            "reward": rng.random() if outcome == "trained" else None,
            "advantage": rng.gauss(0, 1),
            "staleness": number % 3,
            "turns": 2,
            "tokens": 200,
            "truncated": False,
            "seconds": rng.random() * 10,
            "conversation": json.dumps(told),
        }


def make(folder: Path, rollouts: int, steps: int) -> int:
    """The folder of such a run; returns the bytes of its records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "rollouts").mkdir(parents=True)
    head = "step,reward,reward_std,groups,staleness,tokens,seconds,time"
    lines = [f"{step},{step / steps:.3f},0.1,8,0.5,1000,2.0,{step}" for step in range(1, steps + 1)]
    (folder / "rewards.csv").write_text("\n".join([head, *lines]) + "\n")
    rng, size = random.Random(1), 0  # noqa: S311 - no secret
    for step in range(1, steps + 1):
        path = folder / "rollouts" / f"step-{step:08d}.parquet"
        pq.write_table(pa.Table.from_pylist(list(_rows(rng, step, rollouts // steps))), path, compression="zstd")
        size += path.stat().st_size
    return size


def _ask(address: str, path: str, query: dict[str, str] | None = None) -> tuple[float, Any]:
    began = time.monotonic()
    with urlopen(f"{address}{path}?{urlencode(query or {})}", timeout=60) as answer:  # noqa: S310 - our own server
        told = json.loads(answer.read())
    return time.monotonic() - began, told


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    """Prints lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        size = make(Path(place, "run"), asked.rollouts, asked.steps)
        print(json.dumps({"rollouts": asked.rollouts, "steps": asked.steps, "records_mib": round(size / 2**20)}))
        serve = ["serve", str(Path(place, "run")), "--port=0", "--until-stdin-ends"]
        command = [sys.executable, "-m", "gymtrain_report", f"--memory-mib={_MEMORY_MIB}", *serve]
        began = time.monotonic()
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with ended_after(server):
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            slowest = 0.0
            while time.monotonic() - began < _DEADLINE:
                try:
                    seconds, found = _ask(address, "/api/rollouts")
                except OSError:  # no file is read yet
                    seconds, found = 0.0, {"total": 0}
                slowest = max(slowest, seconds)
                if found["total"] >= asked.rollouts:
                    break
                time.sleep(0.2)
            indexed = round(time.monotonic() - began, 1)
            line = {"indexed_s": indexed, "slowest_answer_meanwhile_s": round(slowest, 3)}
            print(json.dumps(line | {"peak_mib": round(_peak_mib(server.pid))}), flush=True)
            for name, query in _QUERIES.items():
                answers = [_ask(address, "/api/rollouts", query) for _ in range(5)]
                median = statistics.median(seconds for seconds, _ in answers)
                print(json.dumps({"search": name, "found": answers[0][1]["total"], "median_s": round(median, 3)}))
            opened, _ = _ask(address, f"/api/rollouts/{asked.rollouts // 2}")
            told, _ = _ask(address, "/api/overview")
            print(json.dumps({"opened_s": round(opened, 3), "overview_s": round(told, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
