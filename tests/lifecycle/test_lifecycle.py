"""Starting, breaking, mending and removing the development cluster. These tests destroy the one that runs.

GYMTRAIN_LIFECYCLE=1 pytest tests/lifecycle
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dev.cluster.addons import kubectl
from dev.cluster.down import leftovers
from dev.host import cgroups, firewall, mounts, network, processes
from dev.settings import DAEMONS, REPOSITORY, Settings

pytestmark = pytest.mark.skipif(
    os.environ.get("GYMTRAIN_LIFECYCLE") != "1",
    reason="destroys the development cluster; GYMTRAIN_LIFECYCLE=1 allows it",
)
SETTINGS = Settings()
# What cluster-down has to put back.
SWITCHES = [Path("/proc/sys") / name for name in network.SWITCHES]


def dev(*arguments: str, succeeds: bool = True) -> str:
    """A command as a user types it; returns what it said."""
    env = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "CONTEXT")}
    command = [str(REPOSITORY / "dev" / "run"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, check=False)
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr


def pids() -> dict[str, int]:
    found = {name: processes.recorded(SETTINGS, name) for name in DAEMONS}
    return {name: identity.pid for name, identity in found.items() if identity is not None}


def kill(names: tuple[str, ...] = DAEMONS) -> None:
    for name, pid in pids().items():
        if name in names:
            os.kill(pid, signal.SIGKILL)


def remember() -> None:
    kubectl(SETTINGS, "create", "configmap", "memory")


def remembers() -> bool:
    return "memory" in kubectl(SETTINGS, "get", "configmaps", "-o", "name")


def assert_works() -> None:
    """A new pod runs and the cluster's DNS answers it."""
    program = "import socket; print(socket.gethostbyname('kubernetes.default.svc'))"
    image = ("--image=debian:trixie-slim", "--restart=Never", "--command", "--")
    kubectl(SETTINGS, "delete", "pod", "probe", "--ignore-not-found", "--now")
    kubectl(SETTINGS, "run", "probe", *image, "python3.13", "-c", program)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl(SETTINGS, "wait", done, "pod/probe", "--timeout=90s", deadline=100)
    assert kubectl(SETTINGS, "logs", "probe").strip() == "10.96.0.1"
    kubectl(SETTINGS, "delete", "pod", "probe", "--now")


@pytest.fixture
def clean() -> list[str]:
    """A machine without a cluster; returns its kernel switches."""
    dev("cluster-down")
    return [switch.read_text() for switch in SWITCHES]


@pytest.fixture
def cluster() -> None:
    """A new cluster that remembers something."""
    dev("cluster-down")
    dev("cluster-up")
    remember()


def test_a_cluster_comes_and_goes_without_a_trace(clean: list[str]) -> None:
    dev("cluster-up")
    assert_works()
    assert leftovers(SETTINGS)

    dev("cluster-down")

    assert dev("leftovers") == ""
    assert [switch.read_text() for switch in SWITCHES] == clean
    assert not SETTINGS.state.exists()
    assert "fix: dev/run cluster-up" in dev("kubeconfig", succeeds=False)


@pytest.mark.usefixtures("clean")
def test_removing_nothing_is_fine() -> None:
    dev("cluster-down")


@pytest.mark.usefixtures("cluster")
def test_a_healthy_cluster_is_left_alone() -> None:
    before = pids()
    started = time.monotonic()

    said = dev("cluster-up")

    assert "up already" in said
    assert pids() == before
    assert time.monotonic() - started < 15


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("victim", ["kube-apiserver", "etcd", "containerd", "kubelet", "kube-proxy", "kube-router"])
def test_a_dead_daemon_is_started_again(victim: str) -> None:
    kill((victim,))

    dev("cluster-up")

    assert not processes.dead(SETTINGS, DAEMONS)
    assert remembers()
    assert_works()


@pytest.mark.usefixtures("cluster")
def test_a_cluster_outlives_what_a_reboot_takes() -> None:
    kill()
    cgroups.destroy()
    for stray in processes.mentioning(str(SETTINGS.state), ["containerd-shim-runc-v2"]):
        processes.end(stray, grace=1)
    for point in mounts.below(SETTINGS.state):
        subprocess.run(["umount", "--lazy", point], check=True)
    shutil.rmtree(SETTINGS.run)
    firewall.clean()
    network.tear_down(SETTINGS)

    dev("cluster-up")

    assert remembers()
    assert_works()


@pytest.mark.usefixtures("cluster")
def test_a_state_that_was_never_finished_is_replaced() -> None:
    (SETTINGS.state / "complete").unlink()
    shutil.rmtree(SETTINGS.pids)  # nothing but the processes themselves tells that they are ours

    dev("cluster-up")

    assert not remembers()
    assert_works()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("damaged", ["ports.json", "pki/ca.crt", "etcd"])
def test_a_state_that_lost_something_is_replaced(damaged: str) -> None:
    kill()
    path = SETTINGS.state / damaged
    shutil.rmtree(path) if path.is_dir() else path.write_text("")

    dev("cluster-up")

    assert_works()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("seconds", [1.5, 3, 5])
def test_a_start_that_was_killed_does_not_harm_the_next(seconds: float) -> None:
    starting = subprocess.Popen([REPOSITORY / "dev" / "run", "cluster-up"], stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    starting.kill()
    starting.wait()

    dev("cluster-up")

    assert_works()


@pytest.mark.usefixtures("cluster")
def test_removal_needs_no_daemon_and_no_pid_file() -> None:
    kill()
    shutil.rmtree(SETTINGS.pids)

    dev("cluster-down")

    assert dev("leftovers") == ""
