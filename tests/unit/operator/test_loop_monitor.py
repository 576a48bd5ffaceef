"""A loop that hangs is told from one that is starved."""

import urllib.error
import urllib.request

import pytest

from gymtrain_operator.health import HUNG_SECONDS, Health, LoopMonitor, served
from tests.support.apiserver import free_port


class Machine:
    """Clocks that the test moves."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.monitor = LoopMonitor(lambda: self.now, lambda: self.cpu)

    def pass_by(self, seconds: float, *, share: float, late: float = 0.0) -> None:
        """`seconds` in which the process gets this share of a core, its watcher woken this much too late each time."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0 + late
            self.cpu += (1.0 + late) * share
            self.monitor.sample()


@pytest.mark.parametrize(
    ("share", "late", "hung"),
    [
        pytest.param(1.0, 0.0, True, id="it computes without end"),
        pytest.param(0.001, 0.0, True, id="it waits for a lock, and nobody else wants the core"),
        pytest.param(0.1, 0.05, False, id="a tenth of a core, all of it used"),
        pytest.param(0.005, 0.8, False, id="a share of nothing on a full node: whoever wakes up is late"),
    ],
)
def test_two_minutes_without_a_heartbeat(share: float, late: float, hung: bool) -> None:
    machine = Machine()
    machine.pass_by(120, share=share, late=late)
    assert machine.monitor.hung is hung


def test_a_starved_loop_that_computes_without_end_is_found_in_the_end() -> None:
    machine = Machine()
    machine.pass_by(HUNG_SECONDS * 10 + 20, share=0.1)
    assert machine.monitor.hung


def test_a_heartbeat_starts_the_count_again() -> None:
    machine = Machine()
    for _ in range(10):
        machine.pass_by(HUNG_SECONDS - 5, share=1.0)
        assert not machine.monitor.hung
        machine.monitor.heartbeat()
        machine.pass_by(1, share=1.0)
    assert machine.monitor.granted_seconds == 0.0


def _healthz(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_is_answered_while_the_event_loop_stands_still() -> None:
    """There is none here at all; the answer comes from a thread of its own."""
    health, port = Health(), free_port()
    with served(health, port):
        assert _healthz(port) == (200, "ok\n")
        health.loop.granted_seconds = HUNG_SECONDS + 1
        status, why = _healthz(port)
        assert status == 503
        assert "the event loop hangs" in why
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
