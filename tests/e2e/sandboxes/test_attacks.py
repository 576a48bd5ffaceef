"""Attacks that take long or need the node: `make test-faults` runs them, the others are in test_sandboxes.py.

Each time the caller gets an answer in time that says what happened, and the other sandboxes work on.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import node
from tests.support.kubectl import Kubectl, eventually
from tests.support.sandboxes import IMAGE, IMAGE_WITH_VOLUMES, Sandboxes, running

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

# Tries for five seconds to reach addresses by TCP, then asks a name server by UDP. Prints whatever answered.
REACH = """
import socket, sys, time
*addresses, server = sys.argv[1:]
end = time.monotonic() + 5
while time.monotonic() < end:
    for address in addresses:
        host, port = address.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=0.5).close()
            print(address)
        except OSError:
            pass
query = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\12kubernetes\\7default\\3svc\\7cluster\\5local\\0\\0\\1\\0\\1"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(3)
    try:
        udp.sendto(query, (server, 53))
        print(udp.recv(512))
    except OSError:
        pass
"""

# Takes from the daemon, which is process 1 and of the same user, all that can be taken from outside.
LOWER = """
import resource
for name in ("RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_AS"):
    try:
        resource.prlimit(1, getattr(resource, name), (1, 1))
    except (PermissionError, ValueError):
        pass
"""
COLD = 20
FORGED = "2026-01-01 ERROR forged by a sandbox"


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


def test_the_first_command_of_a_cold_sandbox_reaches_nothing(boxes: Sandboxes, run: Kubectl) -> None:
    """A pod's fence takes a moment to hold, and the command comes as soon as the sandbox is leased."""
    cluster = json.loads(run.run("get", "service", "kubernetes", "-n", "default", "-o", "json"))["spec"]["clusterIP"]
    dns = json.loads(run.run("get", "service", "kube-dns", "-n", "kube-system", "-o", "json"))["spec"]["clusterIP"]
    machine = run.list("nodes")[0]["status"]["addresses"][0]["address"]
    control = run.run("exec", boxes.pod, "-c", "gym", "--", "python", "-c", REACH, dns)
    assert "kubernetes" in control, "who may ask, gets an answer"
    command = f"python3 -c '{REACH}' {cluster}:443 {machine}:6443 {machine}:10250 {dns}"

    def reached(number: int) -> str:
        box = running(boxes.create(IMAGE, task=f"cold-{number}"))
        done = boxes.run(box, command, seconds=60)
        boxes.close(box)
        assert (done.get("t"), done.get("code")) == ("exit", 0), done
        return str(done["out"])

    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(reached, range(COLD))) == [""] * COLD


def test_what_a_command_takes_from_the_daemon_costs_its_own_sandbox_alone(
    boxes: Sandboxes, victim: dict[str, Any]
) -> None:
    boxes.run(victim, f"python3 -c '{LOWER}'", seconds=30)
    began = time.monotonic()
    done = boxes.run(victim, "echo here", seconds=30)
    assert time.monotonic() - began < 120
    assert done.get("out") == "here\n" or done.get("t") in ("error", "lost") or "message" in done, done


def test_a_message_that_a_command_leaves_for_the_kubelet_forges_no_line(
    boxes: Sandboxes, kubeconfig: str, victim: dict[str, Any], run: Kubectl
) -> None:
    node.require_own_node(kubeconfig)
    boxes.run(victim, f"printf 'ended\\n{FORGED}\\n' > /dev/termination-log")
    node.kill_daemon(run.get("pod", victim["podName"])["metadata"]["uid"])
    said = _failed(boxes, victim)
    assert said["reason"] in ("OOMKilled", "Exited", "Error"), said
    assert "\n" not in said["message"]
    (broker,) = run.pods("boxes", role="broker")
    lines = run.run("logs", broker["metadata"]["name"]).splitlines()
    assert not [line for line in lines if line.startswith(FORGED)]


def test_a_termination_message_of_gigabytes_ends_the_sandbox_and_says_why(
    boxes: Sandboxes, victim: dict[str, Any]
) -> None:
    """It is a file of the node's, which the kubelet doesn't count."""
    boxes.run(victim, "head -c 900K /dev/zero > /dev/termination-log; sleep 5")
    assert boxes.run(victim, "echo here")["out"] == "here\n", boxes.get(victim)
    done = boxes.run(victim, "head -c 2G /dev/zero > /dev/termination-log; sleep 100", seconds=110)
    assert "code" not in done, done
    said = _failed(boxes, victim)
    assert (said["state"], said["reason"]) == ("Failed", "UncountedDisk")
    assert "/dev/termination-log took" in said["message"]
    assert "write elsewhere" in said["message"]


@pytest.mark.parametrize(
    "fill",
    [
        "head -c 900M /dev/zero > /data/full",
        "mkdir -p /data/a/b && head -c 900M /dev/zero > /data/a/b/full && chmod 0 /data/a/b /data/a",
    ],
    ids=["in sight", "in a folder that nobody may list"],
)
def test_a_volume_of_the_image_that_fills_ends_the_sandbox_and_says_why(
    boxes: Sandboxes, other: dict[str, Any], fill: str
) -> None:
    """It is a folder of the node's, which the kubelet doesn't count."""
    victim = running(boxes.create(IMAGE_WITH_VOLUMES, task="volume", resources={"diskGiB": 0.2}))
    half = boxes.run(victim, "head -c 100M /dev/zero > /data/half; sleep 5; rm /data/half; echo here")
    assert half["out"] == "here\n", (half, boxes.get(victim))
    done = boxes.run(victim, f"{fill}; sleep 100", seconds=110)
    assert "code" not in done, done
    said = _failed(boxes, victim)
    assert (said["state"], said["reason"]) == ("Failed", "UncountedDisk")
    assert "(/data) took more than" in said["message"]
    assert "resources.diskGiB" in said["message"]
    assert boxes.run(other, "echo works")["out"] == "works\n"
    boxes.close(victim)


def test_a_hundred_thousand_empty_files_harm_no_other_sandbox(boxes: Sandboxes, victim: dict[str, Any]) -> None:
    """`victim` sees that the other one works on."""
    make = "[open(str(n), 'x').close() for n in range(100_000)]"
    done = boxes.run(victim, f'mkdir -p /tmp/many && cd /tmp/many && python3 -c "{make}"', seconds=300)
    assert done.get("t") in ("exit", "error", "lost"), done
    assert boxes.run(victim, "echo here").get("out") == "here\n" or _failed(boxes, victim)["state"] == "Failed"
