"""A clock that is set while sandboxes run."""

import time

import pytest

from gymtrain_broker.main import steady
from tests.unit.broker.conftest import Start


def test_the_brokers_time_begins_at_the_clocks_and_goes_on_without_it() -> None:
    wall, monotonic = [1_000_000.0], [50.0]
    now = steady(lambda: wall[0], lambda: monotonic[0])
    assert now() == 1_000_000.0
    wall[0] += 7200
    assert now() == 1_000_000.0
    monotonic[0] += 5
    assert now() == 1_000_005.0
    wall[0] = 0
    assert now() == 1_000_005.0


async def test_a_clock_that_is_set_ahead_ends_no_sandbox(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await start(idleTimeoutSeconds=60, timeoutSeconds=100, queueTimeoutSeconds=60, maxConcurrent=1)
    _, running = await bench.ask()
    _, queued = await bench.ask(wait=0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    for _ in range(3):
        bench.process.controller.round()
    assert (await bench.get(running["id"]))["state"] == "Running"
    assert (await bench.get(queued["id"]))["state"] == "Queued"
