"""What the operator costs with many runs that train, or that have ended: memory, CPU, requests.

    python -m benchmarks.operator_load --runs 300 [--operator OTHER/CHECKOUT/operator]
    python -m benchmarks.operator_load --ended 10000

With --ended, one run trains to its end, and the others are copies of it that ended long ago, of which an operator
learns at its start. Of what a run leaves they have nothing: it isn't read (tests/unit/operator).

Needs no cluster: kube-apiserver, etcd and the controllers are real (`dev/run binaries`); the node is that of the tests,
whose runs train a step a second and answer as trainers and vLLM do. The operator is a process of its own, of this
checkout or of another one, so that two can be compared.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Result, as_table
from gymtrain_api import labels
from gymtrain_api.times import to_seconds, to_text
from tests.support.apiserver import ApiServer, binary
from tests.support.fakenode import FakeNode
from tests.support.install import install_crd
from tests.support.kubectl import Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.rest import Rest
from tests.support.specs import played_run

_ROOT = Path(__file__).parents[1]
_NAMESPACE = "bench"
_AT_ONCE = 25  # applied together: all at once would measure the fake node's start
_AIM_MB = 200
_MOST_SECONDS = 1800  # for one such part, on a machine with other work
_ENDED = "ended"
_COPIES_AT_ONCE = 16
_OLDER_SECONDS = 10 * 86_400


@dataclass(frozen=True)
class _Reading:
    """What the operator took until a moment."""

    at: float
    cpu: float  # seconds
    requests: float
    writes: float


def measure(runs: int, seconds: float, operator: Path, log: Path) -> list[Result]:
    """Starts everything, has `runs` runs train, and looks for `seconds`."""
    name = "operator load"
    with _cluster() as (server, admin), OperatorProcess(server.kubeconfig, log, source=operator) as process:
        before = process.resident_mb()
        settled = _train(admin, runs)
        load = _load(name, process, seconds)
        oldest = _oldest_step(admin)
        another = _to_preflight(admin)
        resident = process.resident_mb()
        peak = process.peak_mb()
    return [
        Result(name, "resident, without runs", before, "MB"),
        Result(name, f"resident, {runs} runs that train", resident, "MB", aim=_AIM_MB),
        Result(name, "of it for each run", (resident - before) * 1000 / runs, "KB"),
        Result(name, "resident at most, since the start", peak, "MB"),
        *load,
        Result(name, "oldest step in a status", oldest, "s"),
        Result(name, "apply of another run to its preflight pod", another, "s"),
        Result(name, "apply to all runs training", settled, "s"),
    ]


def measure_ended(ended: int, seconds: float, operator: Path, log: Path) -> list[Result]:
    """Looks for `seconds` at an operator with one run that has ended, and then at another one with `ended` of them."""
    found: list[Result] = []
    with _cluster() as (server, admin):
        with OperatorProcess(server.kubeconfig, log, source=operator):
            admin.apply(played_run(_ENDED))
            admin.wait_condition(_ENDED, "Complete", _MOST_SECONDS)
        for number in (1, ended):
            if number > 1:
                asyncio.run(_copy(server, admin.get("gymtrainingrun", _ENDED), number - 1))
            name, began = f"operator, ended runs: {number:,}", time.monotonic()
            with OperatorProcess(server.kubeconfig, log, source=operator) as process:
                ready = time.monotonic() - began
                known = _until_known(process, number) - began
                asked = _read(process).requests
                load = _load(name, process, seconds)
                resident, peak = process.resident_mb(), process.peak_mb()
                another = _to_preflight(admin)
                admin.run("delete", "gtr", "another", "--timeout=120s", timeout=150)
            found += [
                Result(name, "start to ready", ready, "s"),
                Result(name, "start until all are known", known, "s"),
                Result(name, "requests until then", asked, ""),
                Result(name, "resident", resident, "MB", aim=_AIM_MB),
                Result(name, "resident at most", peak, "MB"),
                *load,
                Result(name, "apply of another run to its preflight pod", another, "s"),
            ]
    return found


@contextmanager
def _cluster() -> Iterator[tuple[ApiServer, Kubectl]]:
    """An API server with the CRD, controllers and a node, and kubectl for it."""
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder)) as server:
        install_crd(server)
        admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", _NAMESPACE)
        server.start_controllers()
        with FakeNode(server, long_steps=100_000):
            yield server, admin


async def _copy(server: ApiServer, run: dict[str, Any], count: int) -> None:
    """Makes copies of a run that ended ten days earlier, each with its record but for the name in it."""
    path = f"/apis/gymtrain.dev/v1alpha1/namespaces/{_NAMESPACE}/gymtrainingruns"
    kept = {key: run["metadata"][key] for key in ("labels", "finalizers") if key in run["metadata"]}
    record = json.loads(run["metadata"]["annotations"][labels.RECORD])
    status = _older(run["status"])
    room = asyncio.Semaphore(_COPIES_AT_ONCE)

    async def one(name: str) -> None:
        annotations = {labels.RECORD: json.dumps(record | {"run": name})}
        body = {**run, "metadata": {**kept, "annotations": annotations, "name": name}}
        async with room:
            await rest.done("POST", path, body, but=(409,))  # made, but the answer was lost
            await rest.done("PATCH", f"{path}/{name}/status", {"status": status})

    async with Rest.of_server(server) as rest, asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(f"{_ENDED}-{number}"))


def _older(status: dict[str, Any]) -> dict[str, Any]:
    """The status of a run that ended long ago: copies would all have ended in the minute before the start."""

    def shifted(text: str) -> str:
        return to_text((to_seconds(text) or 0.0) - _OLDER_SECONDS)

    conditions = [{**one, "lastTransitionTime": shifted(one["lastTransitionTime"])} for one in status["conditions"]]
    return {**status, "completionTime": shifted(status["completionTime"]), "conditions": conditions}


def _until_known(process: OperatorProcess, runs: int) -> float:
    """Waits until the operator has seen all runs. Returns when it had."""
    end = time.monotonic() + _MOST_SECONDS
    while (known := _known(process)) < runs:
        if time.monotonic() > end:
            raise AssertionError(f"the operator knows {known:.0f} of {runs} runs after {_MOST_SECONDS} s")
        time.sleep(0.2)
    return time.monotonic()


def _known(process: OperatorProcess) -> float:
    return _total(process.metrics(), "gymtrain_operator_runs")


def _total(metrics: Mapping[str, float], name: str) -> float:
    """Of all labels."""
    return sum(value for key, value in metrics.items() if key.startswith(f"{name}{{"))


def _train(admin: Kubectl, runs: int) -> float:
    """Applies the runs, and waits until all train. Returns seconds."""
    began = time.monotonic()

    def training(least: int) -> bool:
        return [run.get("status", {}).get("state") for run in admin.list("gtr")].count("Training") >= least

    for start in range(0, runs, _AT_ONCE):
        some = [played_run(f"long-{number}") for number in range(start, min(start + _AT_ONCE, runs))]
        admin.apply(*some)
        wanted = start + len(some)
        eventually(partial(training, wanted), f"{wanted} runs train", _MOST_SECONDS, every=2)
    return time.monotonic() - began


def _oldest_step(admin: Kubectl) -> float:
    """Seconds since the oldest of the reports that the statuses show. The trainers report each second."""
    runs = admin.list("gtr")
    now = time.time()
    return max(now - (to_seconds(run["status"]["progress"]["lastUpdateTime"]) or 0.0) for run in runs)


def _to_preflight(admin: Kubectl) -> float:
    """Seconds from the apply of one more run to its preflight pod, kubectl's own time among them."""
    began = time.monotonic()
    admin.apply(played_run("another"))
    eventually(lambda: admin.list("pods", f"{labels.RUN}=another"), "its preflight pod", 300, every=0.1)
    return time.monotonic() - began


def _load(name: str, process: OperatorProcess, seconds: float) -> list[Result]:
    """What it takes at rest, over so many seconds."""
    first = _read(process)
    time.sleep(seconds)
    last = _read(process)
    took = last.at - first.at
    return [
        Result(name, "share of a core", (last.cpu - first.cpu) / took * 100, "%"),
        Result(name, "requests to the API server", (last.requests - first.requests) / took, "/s"),
        Result(name, "of them writes of a status", (last.writes - first.writes) / took, "/s"),
    ]


def _read(process: OperatorProcess) -> _Reading:
    metrics = process.metrics()
    requests = _total(metrics, "gymtrain_operator_api_requests_total")
    writes = metrics["gymtrain_operator_status_writes_total"]
    return _Reading(time.monotonic(), metrics["process_cpu_seconds_total"], requests, writes)


def main() -> int:
    """Prints the table; 1 where the operator is larger than it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_load", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="that train")
    parser.add_argument("--ended", type=int, help="runs that have ended, instead")
    parser.add_argument(
        "--seconds", type=float, default=90, help="how long to look once all have settled (default: 90)"
    )
    parser.add_argument("--operator", type=Path, default=_ROOT / "operator", help="its folder, api and kube beside it")
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "operator-load.log")
    options = parser.parse_args()
    look, number = (measure_ended, options.ended) if options.ended else (measure, options.runs)
    results = look(number, options.seconds, options.operator.resolve(), options.log)
    print(as_table(results))
    return 0 if all(result.aim is None or result.value <= result.aim for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
