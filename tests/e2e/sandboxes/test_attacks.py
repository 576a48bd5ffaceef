"""Attacks that take long or need the node: `make test-faults` runs them, the others are in test_sandboxes.py.

Each time the caller gets an answer in time that says what happened, and the other sandboxes work on.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import node
from tests.support.kubectl import Kubectl, eventually
from tests.support.sandboxes import IMAGE, Sandboxes, running

pytestmark = pytest.mark.faults

# Sets the clock to what it is, by all calls there are: harmless should it succeed. Prints how each was refused.
SET_CLOCK = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
class Timeval(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("usec", ctypes.c_long)]
try:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    print("set")
except PermissionError:
    print("refused")
now = time.time()
done = libc.settimeofday(ctypes.byref(Timeval(int(now), int(now % 1 * 1e6))), None)
print("set" if done == 0 else "refused")
"""


@pytest.fixture(scope="module")
def other(boxes: Sandboxes) -> Iterator[dict[str, Any]]:
    """A sandbox beside the one that is attacked."""
    box = running(boxes.create(IMAGE, task="beside"))
    yield box
    boxes.close(box)


@pytest.fixture
def victim(boxes: Sandboxes, other: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The one that is attacked. Afterwards the other one works as before."""
    box = running(boxes.create(IMAGE, task="attacked"))
    yield box
    boxes.close(box)
    assert boxes.run(other, "echo works")["out"] == "works\n"


def _failed(boxes: Sandboxes, box: dict[str, Any], seconds: float = 60) -> dict[str, Any]:
    """What the broker says of a sandbox that it has given up."""
    eventually(lambda: boxes.get(box)["state"] in ("Failed", "Closed"), "the broker has given it up", seconds)
    return boxes.get(box)


def test_a_daemon_killed_on_its_node_is_told_to_its_caller_and_to_the_broker(
    boxes: Sandboxes, kubeconfig: str, victim: dict[str, Any], run: Kubectl
) -> None:
    node.require_own_node(kubeconfig)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(boxes.run, victim, "echo begun; sleep 7200", seconds=300)
        # The command is running once somebody can see it.
        eventually(lambda: "sleep" in boxes.run(victim, "cat /proc/[0-9]*/cmdline")["out"], "the command runs", 60)
        began = time.monotonic()
        node.kill_daemon(run.get("pod", victim["podName"])["metadata"]["uid"])
        lost = call.result(timeout=60)
    assert time.monotonic() - began < 60
    assert lost["t"] == "lost", lost
    said = _failed(boxes, victim)
    assert said["state"] == "Failed"
    assert "137" in said["message"] or "OOMKilled" in said["reason"], said


def test_memory_that_no_command_can_be_blamed_for_ends_the_sandbox_and_says_why(
    boxes: Sandboxes, other: dict[str, Any]
) -> None:
    """What lies in /dev/shm counts for the container: once it is full, the kernel kills one process after the other,
    the daemon at last."""
    victim = running(boxes.create(IMAGE, task="shm", resources={"memoryMiB": 48}))
    began = time.monotonic()
    done = boxes.run(victim, "head -c 60M /dev/zero > /dev/shm/full; sleep 1; head -c 60M /dev/zero | tail", seconds=30)
    assert done.get("t") in ("exit", "error", "lost"), done
    assert time.monotonic() - began < 90

    def settled() -> bool:
        """Either commands are refused and say so, or the broker says that memory ran out."""
        again = boxes.run(victim, "echo here", seconds=10)
        if again.get("t") == "exit" or ("message" in again and again.get("t") != "lost"):
            return True
        return bool(boxes.get(victim)["state"] == "Failed")

    eventually(settled, "the sandbox answers, or has failed", 60)
    state = boxes.get(victim)
    if state["state"] == "Failed":
        assert state["reason"] in ("OOMKilled", "Exited", "Error"), state
    boxes.close(victim)
    assert boxes.run(other, "echo works")["out"] == "works\n"


def test_a_sleep_of_two_hours_ends_with_the_sandboxs_time(boxes: Sandboxes, other: dict[str, Any]) -> None:
    box = running(boxes.create(IMAGE, task="sleeper", ttlSeconds=15))
    done = boxes.run(box, "sleep 7200", seconds=7200)
    assert done.get("t") in ("exit", "lost"), done
    assert done["seconds"] < 90
    said = boxes.get(box)
    assert (said["state"], said["reason"]) == ("Closed", "Expired")
    assert "ttlSeconds" in said["message"]
    assert boxes.run(other, "echo works")["out"] == "works\n"


def test_the_clock_can_t_be_set_from_inside(boxes: Sandboxes, victim: dict[str, Any]) -> None:
    done = boxes.run(victim, f"python3 -c '{SET_CLOCK}'")
    assert done["out"].split() == ["refused", "refused"], done


def test_no_signal_from_inside_ends_the_daemon(boxes: Sandboxes, victim: dict[str, Any]) -> None:
    first = boxes.run(victim, "for s in $(seq 1 64); do kill -$s 1; done; kill -STOP 1; kill -9 -1", seconds=20)
    done = boxes.run(victim, "echo here")
    assert done["out"] == "here\n", (first, done, boxes.get(victim))
    assert boxes.get(victim)["state"] == "Running"
