"""The operator on a node without a core to spare: it takes its time, and is not restarted."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import OPERATOR_NAMESPACE
from tests.support.cgroups import share_of_a_core
from tests.support.chart import render
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.probes import Probes
from tests.support.specs import played_run

_TENTH = 0.1  # of a core, which is what the chart's request gives on a full node
_READY_SECONDS = 120


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    """The operator's container as the chart has it."""
    (deployment,) = [m for m in render(namespace=OPERATOR_NAMESPACE) if m["kind"] == "Deployment"]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def test_with_a_tenth_of_a_core_it_leads_and_reconciles_and_is_not_restarted(
    runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path, container: dict[str, Any]
) -> None:
    flags = ("--leader-elect", f"--lease-namespace={OPERATOR_NAMESPACE}", "--identity=starved")
    with share_of_a_core(_TENTH) as group:
        process = OperatorProcess(operator_kubeconfig, tmp_path / "log", *flags, cgroup=group)
        process.launch()
        try:
            with Probes(container, process.port) as probes:
                assert probes.ready.wait(_READY_SECONDS), f"not ready: {probes}"
                eventually(lambda: process.metrics()["gymtrain_operator_leader"] == 1, "it leads", PATIENCE)
                for number in range(3):
                    runs.apply(played_run(f"good-{number}"))
                for number in range(3):
                    runs.wait_condition(f"good-{number}", "Complete", PATIENCE)
                assert process.process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                assert process.metrics()["gymtrain_operator_leader"] == 1
            assert probes.restarts == []
        finally:
            process.stop()


def test_a_loop_that_hangs_is_restarted_by_its_liveness_probe(
    operator_kubeconfig: Path, tmp_path: Path, container: dict[str, Any]
) -> None:
    """The chart's probe, hurried: what it asks must tell a hang, with no CPU and with all of it."""
    hurried = container | {"livenessProbe": container["livenessProbe"] | {"periodSeconds": 1, "failureThreshold": 3}}
    hang = tmp_path / "sitecustomize.py"
    hang.write_text(
        "import asyncio, signal, time\n"
        "def hang():\n"
        "    while True:\n"
        "        time.sleep(3600)\n"
        "run = asyncio.run\n"
        "async def both(main):\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hang)\n"
        "    await main\n"
        "asyncio.run = lambda main: run(both(main))\n"
    )
    with (
        OperatorProcess(operator_kubeconfig, tmp_path / "log", preload=tmp_path) as process,
        Probes(hurried, process.port) as probes,
    ):
        assert probes.ready.wait(_READY_SECONDS)
        assert probes.restarts == []
        process.process.send_signal(signal.SIGUSR1)
        eventually(lambda: probes.restarts, "the kubelet restarts it", PATIENCE)
        process.stop(signal.SIGKILL)
