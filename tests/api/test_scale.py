"""Fifty runs at once, two operators, one of which is killed: all settle, and no status flaps."""

import signal
import time
from pathlib import Path
from typing import Any

from tests.support.apiserver import ApiServer
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.recorder import Recorder, falls, flaps
from tests.support.specs import played_run

_GOOD, _BAD, _REFUSED = 40, 5, 5
_ALL = _GOOD + _BAD + _REFUSED
_MAX_RESIDENT_MB = 150
_QUIET_SECONDS = 5


def _runs() -> list[dict[str, Any]]:
    names = [
        f"{kind}-{n}" for kind, count in (("good", _GOOD), ("bad", _BAD), ("refused", _REFUSED)) for n in range(count)
    ]
    return [played_run(name) for name in names]


def _ended(kubectl: Kubectl) -> dict[str, str]:
    """State of the runs that ended, by name."""
    states = {run["metadata"]["name"]: run.get("status", {}).get("state", "") for run in kubectl.list("gtr")}
    return {name: state for name, state in states.items() if state in ("Complete", "Failed")}


def test_fifty_runs_settle_though_the_leader_is_killed(
    cluster: ApiServer, runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    flags = ["--leader-elect", "--lease-namespace=gymtrain-system"]
    first = OperatorProcess(operator_kubeconfig, tmp_path / "first.log", *flags, "--identity=first")
    second = OperatorProcess(operator_kubeconfig, tmp_path / "second.log", *flags, "--identity=second")
    with Recorder(cluster, runs.namespace, tmp_path / "watch") as recorder, first, second:
        eventually(lambda: first.metrics()["gymtrain_operator_leader"] == 1, "the first operator leads", PATIENCE)
        begin = time.monotonic()
        runs.apply(*_runs())
        eventually(lambda: len(_ended(runs)) >= _ALL // 4, "a quarter of the runs ended", PATIENCE)
        resident = first.resident_mb()
        first.stop(signal.SIGKILL)
        eventually(lambda: len(_ended(runs)) == _ALL, "all runs ended", PATIENCE)
        seconds = time.monotonic() - begin
        resident = max(resident, second.resident_mb())
        quiet = [len(statuses) for statuses in recorder.statuses().values()]
        time.sleep(_QUIET_SECONDS)
        statuses = recorder.statuses()

    writes = [len(history) for history in statuses.values()]
    print(f"{_ALL} runs settled in {seconds:.0f} s; operator {resident:.0f} MB; {sum(writes) / _ALL:.1f} writes a run")
    wanted = {run["metadata"]["name"]: run["metadata"]["name"].split("-")[0] for run in _runs()}
    assert {n: s for n, s in _ended(runs).items() if s != ("Complete" if wanted[n] == "good" else "Failed")} == {}
    assert {name: flaps(history) for name, history in statuses.items() if flaps(history)} == {}
    assert [name for name, history in statuses.items() if falls(history, "progress", "step")] == []
    assert [name for name, history in statuses.items() if falls(history, "observedGeneration")] == []
    assert writes == quiet, "statuses are still written after all runs ended"
    assert resident <= _MAX_RESIDENT_MB
