"""Where everything lives, and the few names and numbers that all modules share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

NAME = "gymtrain"
NODE_NAME = "gymtrain-dev"
BRIDGE = "gymtrain0"

# The node has an address of its own, on the bridge: the machine's may change, and certificates,
# kubeconfigs and etcd all hold it. Outside the pod range, so that no policy mistakes it for a pod.
NODE_IP = "10.245.0.1"
POD_CIDR = "10.244.0.0/24"
POD_GATEWAY = "10.244.0.1"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"

KUBERNETES_VERSION = "v1.34.4"
DAEMONS = (
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kube-router",
)
BUILD_DAEMON = "buildkitd"
"""Started when images are first built, so not part of a healthy cluster."""

GPU_DAEMON = "nvidia-device-plugin"
EXTRA_DAEMONS = ("agent-sandbox-controller", "kwok", GPU_DAEMON)
"""Started by `dev/run addon` alone."""

CONTAINERD_2_FEATURES = ("ImageVolume",)
"""Kubernetes' feature gates that are on by default only in later releases (this one: 1.35), and need that runtime."""

BASE_IMAGE = "docker.io/library/debian:trixie-slim"


def _directory(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute()


_STATE = ("GYMTRAIN_STATE", "/var/lib/gymtrain-dev")
CGROUP = _directory(*_STATE).name
"""Named as the state's folder: a second cluster of the machine, in a network of its own, has a group of its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The folders, from the environment."""

    cache: Path = field(default_factory=lambda: _directory("GYMTRAIN_CACHE", "~/.cache/gymtrain"))
    """Survives cluster-down: binaries, the Debian base, image layers, BuildKit's caches."""
    state: Path = field(default_factory=lambda: _directory(*_STATE))
    """One cluster's life: certificates, etcd, kubelet, logs, pid files. cluster-down removes it."""
    wants_containerd_2: bool = field(default_factory=lambda: os.environ.get("GYMTRAIN_CONTAINERD", "") == "2")
    """Start a new cluster with containerd 2 and its runc, from Go modules, instead of Debian's."""
    audit: bool = field(default_factory=lambda: os.environ.get("GYMTRAIN_AUDIT", "") == "1")
    """Write the API server's audit log (one line a request) to the log folder."""

    @property
    def containerd_2(self) -> Path:
        """A marker: the cluster was started with containerd 2."""
        return self.state / "containerd-2"

    @property
    def logs(self) -> Path:
        """Each daemon's output."""
        return self.state / "log"

    @property
    def pids(self) -> Path:
        """One file a daemon."""
        return self.state / "pid"

    @property
    def run(self) -> Path:
        """Sockets. Kept short: a Unix socket's path ends at 107 bytes."""
        return self.state / "run"

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig: what `dev/run kubeconfig` prints."""
        return self.state / "admin.kubeconfig"

    @property
    def programs(self) -> Path:
        """All built programs at stable paths: something for the PATH."""
        return self.cache / "bin"

    @property
    def store(self) -> Path:
        """Images and BuildKit's caches. They refer to each other, so they are kept, and removed, together."""
        return self.cache / "store"

    @property
    def containerd_root(self) -> Path:
        """Image layers. In the cache, so that they outlive the cluster."""
        return self.store / "containerd"

    @property
    def buildkit_root(self) -> Path:
        """Which layer came from which step, and the contents of `--mount=type=cache`."""
        return self.store / "buildkit"

    @property
    def containerd_socket(self) -> Path:
        """containerd's API."""
        return self.run / "containerd.sock"

    @property
    def buildkit_socket(self) -> Path:
        """buildkitd's API."""
        return self.run / "buildkitd.sock"
