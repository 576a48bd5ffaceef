"""NVIDIA's device plugin beside the kubelet: it gives pods `nvidia.com/gpu`, through CDI."""

from __future__ import annotations

import ctypes
import json

from dev.cluster.addons import is_up, kubectl
from dev.files import write
from dev.host import processes
from dev.host.processes import Daemon
from dev.report import DevError, say, wait_until
from dev.settings import GPU_DAEMON, NODE_NAME, Settings
from dev.supply import binaries
from dev.supply.sets import NVIDIA

RESOURCE = "nvidia.com/gpu"


def add(settings: Settings, slices: int) -> None:
    """Start it, and wait for the node to have GPUs. With `slices` above 1, that many pods share each GPU in turns."""
    if problem := is_up(settings):
        raise DevError(f"the cluster does not work: {problem}", fix="dev/run cluster-up")
    if not settings.containerd_2.exists():
        raise DevError(
            "CDI needs containerd 2", fix="dev/run cluster-down, then GYMTRAIN_CONTAINERD=2 dev/run cluster-up"
        )
    wanted = _gpus() * slices
    daemon = _daemon(settings, slices)
    if processes.start(settings, daemon):
        say(f"starting {daemon.name}")

    def without() -> str:
        processes.require(settings, [daemon.name])
        found = allocatable(settings)
        return "" if found == wanted else f"the node has {found} {RESOURCE} instead of {wanted}"

    wait_until("GPUs of the node", without, deadline=60, log=daemon.log(settings), fix="see the log")
    say(f"the node has {wanted} {RESOURCE}")


def _gpus() -> int:
    """How many the driver knows."""
    count = ctypes.c_uint()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise DevError(f"there is no NVIDIA driver: {error}", fix="install it; `nvidia-smi` must work") from None
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
        raise DevError("the NVIDIA driver finds no GPU", fix="`nvidia-smi` must show one")
    return count.value


def _daemon(settings: Settings, slices: int) -> Daemon:
    programs = binaries.ensure(settings, [NVIDIA])
    config = {
        "version": "v1",
        "flags": {
            "migStrategy": "none",
            "plugin": {"deviceListStrategy": ["cdi-cri"]},
        },
        "sharing": {"timeSlicing": {"resources": [{"name": RESOURCE, "replicas": slices}]}} if slices > 1 else {},
    }
    path, text = settings.state / "nvidia-device-plugin.json", json.dumps(config, indent=2)
    if not path.exists() or path.read_text() != text:
        processes.stop(settings, GPU_DAEMON)  # it reads the file once
        write(path, text)
    hook = programs["nvidia-cdi-hook"]
    # The driver's root as the plugin sees it: it runs on the node itself, where by default it would be in a container.
    flags = [f"--config-file={path}", f"--nvidia-cdi-hook-path={hook}", "--driver-root-ctr-path=/"]
    return Daemon(GPU_DAEMON, [programs[GPU_DAEMON], *flags])


def allocatable(settings: Settings) -> int:
    """GPUs, or shares of them, that the node offers."""
    said = kubectl(settings, "get", "node", NODE_NAME, "--output=json", check=False)
    try:
        return int(json.loads(said)["status"]["allocatable"].get(RESOURCE, 0))
    except (ValueError, KeyError):
        return 0
