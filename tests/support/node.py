"""The development cluster's node, as somebody with root on it sees it. Nodes of other clusters are left alone.

A node that was taken away always comes back: when the test is over, or, if the test was killed, by a process apart.

    python -m tests.support.node SECONDS      starts the kubelet after that time, unless it runs
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.cluster import addons, containerd, control_plane, node
from dev.host import processes
from dev.settings import DAEMONS, Settings
from dev.supply.binaries import existing
from tests.support.kubectl import eventually

_KUBELET = "kubelet"
_LONGEST_SECONDS = 400.0
_DAEMON = b"gymtrain-sandboxd\0serve\0"


def require_own_node(kubeconfig: str) -> Settings:
    """The settings of the cluster on this machine; skips the test where the cluster is another."""
    settings = Settings()
    own = Path(kubeconfig).absolute() == settings.kubeconfig
    if not own or processes.recorded(settings, _KUBELET) is None:
        pytest.skip("the node is none of the development cluster's on this machine")
    return settings


@contextmanager
def away(settings: Settings) -> Iterator[None]:
    """Stops the kubelet until the end of the block; what runs on the node runs on, and nobody answers for it."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "tests.support.node", str(_LONGEST_SECONDS)], start_new_session=True
    )
    try:
        processes.stop(settings, _KUBELET)
        yield
    finally:
        back(settings)
        guard.kill()
        guard.wait()
        eventually(lambda: not addons.node_not_ready(settings), "the node is Ready again", 120)


def back(settings: Settings) -> None:
    """Starts the kubelet, unless it runs."""
    programs = {name: existing(settings, name) for name in ("kubelet", "kube-proxy", "kube-router")}
    kubelet, *_ = node.daemons(settings, programs, control_plane.saved_ports(settings))
    assert kubelet.name == _KUBELET
    processes.start(settings, kubelet)


def restart(settings: Settings, name: str, away_seconds: float = 0.0) -> None:
    """Kills one of the cluster's daemons, and starts it again as it was. If this is interrupted, `dev/run cluster-up`
    starts it."""
    identity = processes.recorded(settings, name)
    assert identity is not None, f"{name} doesn't run"
    os.kill(identity.pid, signal.SIGKILL)
    try:
        time.sleep(away_seconds)
    finally:
        processes.stop(settings, name)  # the pid file; the process is gone
        processes.start(settings, _daemon_of(settings, name))


@contextmanager
def stopped(settings: Settings, name: str) -> Iterator[None]:
    """One of the cluster's daemons does nothing until the end of the block."""
    identity = processes.recorded(settings, name)
    assert identity is not None, f"{name} doesn't run"
    os.kill(identity.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(identity.pid, signal.SIGCONT)


def _daemon_of(settings: Settings, name: str) -> processes.Daemon:
    if name == "containerd":
        return containerd.daemon(settings)
    ports = control_plane.saved_ports(settings)
    programs = {one: existing(settings, one) for one in DAEMONS if one != "containerd"}
    known = [*control_plane.daemons(settings, programs, ports), *node.daemons(settings, programs, ports)]
    return next(daemon for daemon in known if daemon.name == name)


def processes_of(pod_uid: str) -> dict[int, str]:
    """The processes of a pod's containers, by pid, with their command lines."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pod_uid in Path(f"/proc/{pid}/cgroup").read_text() and command and not command.startswith(b"/pause"):
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


def wait_not_ready(settings: Settings) -> None:
    """Until the control plane has given the node up."""
    eventually(lambda: addons.node_not_ready(settings), "the node is NotReady", 150, every=2)


def kill_daemon(pod_uid: str) -> None:
    """SIGKILLs the first process of a sandbox, as the kernel's OOM killer or somebody on the node would."""
    os.kill(_daemon(pod_uid), signal.SIGKILL)


def user_of_daemon(pod_uid: str) -> int:
    """The user that a sandbox's first process is for the node."""
    return Path(f"/proc/{_daemon(pod_uid)}").stat().st_uid


def _daemon(pod_uid: str) -> int:
    found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_daemon(pid, pod_uid)]
    assert len(found) == 1, f"daemons of pod {pod_uid}: {found}"
    return found[0]


def _is_daemon(pid: int, pod_uid: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command.endswith(_DAEMON) and pod_uid in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    time.sleep(float(sys.argv[1]))
    back(Settings())
