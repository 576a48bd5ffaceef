"""No sandbox outlives its use."""

import pytest

from gymtrain_api.sandboxes import SandboxState
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Bench, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")


def _move_clock(bench: Bench, seconds: float) -> None:
    """Time passes for the broker alone."""
    controller = bench.process.controller
    before = controller.clock
    controller.clock = lambda: before() + seconds


async def test_a_sandbox_is_closed_when_its_time_is_over(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask(ttlSeconds=0.2)
    after = await bench.until_state(found["id"], SandboxState.CLOSED)
    assert after["reason"] == "Expired"
    await bench.until(lambda: not cluster.pods)


async def test_nobody_gets_more_time_than_the_spec_gives(start: Start) -> None:
    bench = await start(timeoutSeconds=100)
    _, found = await bench.ask(ttlSeconds=1e6)
    _move_clock(bench, 99)
    bench.process.controller.round()
    claim = bench.process.broker.find(found["id"])
    claim.heard_at = bench.process.controller.clock()
    assert claim.state is SandboxState.RUNNING
    _move_clock(bench, 2)
    bench.process.controller.round()
    assert claim.reason == "Expired"


async def test_its_time_counts_on_over_a_restart(start: Start, cluster: FakeCluster) -> None:
    first = await start(timeoutSeconds=100)
    _, found = await first.ask()
    await first.stop()
    second = await start(timeoutSeconds=100)
    await second.until_state(found["id"], SandboxState.RUNNING)
    _move_clock(second, 101)
    second.process.controller.round()
    assert second.process.broker.find(found["id"]).reason == "Expired"


async def test_a_sandbox_that_nobody_calls_is_closed(start: Start, cluster: FakeCluster) -> None:
    bench = await start(idleTimeoutSeconds=60)
    _, found = await bench.ask()
    claim = bench.process.broker.find(found["id"])
    cluster.idle[found["podName"]] = 61
    claim.ready_at = bench.process.controller.clock() - 61
    await bench.process.controller.ask_idle(claim)
    after = await bench.until_state(found["id"], SandboxState.CLOSED)
    assert (after["reason"], "idleTimeoutSeconds" in after["message"]) == ("Idle", True)
    await bench.until(lambda: not cluster.pods)


async def test_the_idle_time_before_a_claim_does_not_count(start: Start, cluster: FakeCluster) -> None:
    bench = await start(idleTimeoutSeconds=60, warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    cluster.idle[bench.free_ready()[0]] = 3600
    _, found = await bench.ask()
    claim = bench.process.broker.find(found["id"])
    await bench.process.controller.ask_idle(claim)
    bench.process.controller.round()
    assert claim.state is SandboxState.RUNNING
    assert claim.idle < 60


async def test_a_sandbox_whose_daemon_is_silent_is_closed_as_an_idle_one(start: Start, cluster: FakeCluster) -> None:
    bench = await start(idleTimeoutSeconds=60)
    _, found = await bench.ask()
    claim = bench.process.broker.find(found["id"])
    cluster.deaf.add(found["podName"])
    _move_clock(bench, 90)
    await bench.process.controller.ask_idle(claim)
    bench.process.controller.round()
    assert (claim.reason, "has not answered" in claim.message) == ("Idle", True)


async def test_a_pod_that_reached_its_own_deadline_is_removed(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask()
    status = {"phase": "Failed", "reason": "DeadlineExceeded"}
    cluster.update(found["podName"], lambda pod: pod["status"].update(status))
    assert (await bench.until_state(found["id"], SandboxState.FAILED))["reason"] == "Expired"
    await bench.until(lambda: not cluster.pods)
