"""Removing the cluster, and telling what is left of one.

Nothing here relies on the daemons: processes are found by pid file, by control group, and by command lines that
name our folders; mounts by path; links by bridge. So it works after crashes, reboots and half-finished starts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from dev.cluster import containerd
from dev.host import cgroups, firewall, mounts, network, processes
from dev.host.processes import Identity
from dev.report import DevError, step
from dev.settings import BUILD_DAEMON, DAEMONS, EXTRA_DAEMONS, Settings

_SHIM = "containerd-shim-runc-v2"

_LOG_LINKS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_RUN = Path("/run/containerd")
_SHIM_SOCKETS = _RUN / "s"
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_GPUS = Path("/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json")
"""What NVIDIA's device plugin tells the container runtime of the GPUs."""


def down(settings: Settings) -> None:
    """Remove everything but the cache."""
    with step("removing the cluster"):
        remove(settings)
    if left := leftovers(settings):
        raise DevError("left behind:\n  " + "\n  ".join(left), fix="run `dev/run cluster-down` again")


def remove(settings: Settings) -> None:
    """Workloads first, while containerd can still account for them; then daemons, then what they left."""
    node = ("kubelet", "kube-router", "kube-proxy", "kube-scheduler", "kube-controller-manager")
    for name in (*EXTRA_DAEMONS, BUILD_DAEMON, *node):
        processes.stop(settings, name)
    cgroups.destroy()
    if processes.recorded(settings, "containerd") is not None:
        try:
            containerd.forget_containers(settings)
        except DevError as error:
            # A containerd that no longer answers is stopped below, like everything else.
            _ = error
    for name in ("kube-apiserver", "etcd", "containerd"):
        processes.stop(settings, name)
    for stray in _strays(settings):
        processes.end(stray, grace=3)
    cgroups.destroy()
    firewall.clean()
    network.tear_down(settings)
    containerd.forget_sandbox_files(settings)
    mounts.remove_tree(settings.state)
    for path in _files(settings):
        path.unlink(missing_ok=True)
    for folder in (_LOG_LINKS, _CNI_RESULTS, _CNI_RESULTS.parent, _DEVICE_PLUGINS, _DEVICE_PLUGINS.parent):
        _remove_if_empty(folder)
    if not (_RUN / "containerd.sock").exists():
        for name in ("runc/k8s.io", "runc", "fifo", "s", ""):
            _remove_if_empty(_RUN / name)


def leftovers(settings: Settings) -> list[str]:
    """One line for each thing of ours on the machine outside the cache; empty when clean."""
    found = [f"process {stray.pid} ({stray.program})" for stray in _strays(settings)]
    found += [f"process {pid} in control group" for pid in sorted(cgroups.pids())]
    found += [f"control group {group}" for group in cgroups.groups()]
    found += [f"network link {link}" for link in network.links()]
    found += firewall.leftovers()
    found += [f"mount {point}" for point in mounts.below(settings.state)]
    found += [f"file {path}" for path in _files(settings)]
    if settings.state.exists():
        found.append(f"folder {settings.state}")
    return found


def _strays(settings: Settings) -> list[Identity]:
    """Processes of ours that a pid file may not name: shims, and daemons whose pid file was lost."""
    programs = [*DAEMONS, *EXTRA_DAEMONS, BUILD_DAEMON, _SHIM]
    return processes.mentioning(str(settings.state), programs)


def _files(settings: Settings) -> Iterator[Path]:
    """Files at places that the daemons do not let us choose, as far as they are ours or dead."""
    for link in _entries(_LOG_LINKS):
        # The kubelet's links lead to the pods' logs in the state.
        if link.is_symlink() and not link.exists():
            yield link
    for result in _entries(_CNI_RESULTS):
        # Each holds the path of the network namespace it was for.
        if str(settings.state) in result.read_text(errors="replace"):
            yield result
    yield from (path for path in _entries(_SHIM_SOCKETS) if path.is_socket() and _is_dead(path))
    if _GPUS.exists() and str(settings.cache) in _GPUS.read_text(errors="replace"):
        yield _GPUS
    yield from (path for path in _entries(_DEVICE_PLUGINS) if path.is_socket() and _is_dead(path))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_dead(path: Path) -> bool:
    """Whether nobody listens on a Unix socket any more."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return True
    return False


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
