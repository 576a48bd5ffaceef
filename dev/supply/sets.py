"""Which programs the cluster and what runs beside it are, and which Go modules they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.settings import KUBERNETES_VERSION
from dev.supply.toolchain import GO_FOLDER


def _version_flags(version: str) -> str:
    """Without these a build calls itself v0.0.0-master, which clients that compare versions choke on."""
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())


@dataclass(frozen=True, slots=True)
class BinarySet:
    """Programs that are cached together."""

    name: str
    packages: Mapping[str, str]
    """Program name to Go package; none where documents are all that is wanted."""
    ldflags: str = "-s -w"
    module: str = ""
    """Folder of the go.mod; named as the set where empty."""
    documents: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Files kept beside the programs, each joined from files of modules: name to `MODULE//PATTERN`."""
    lazy: bool = False
    """Built only when asked for by name."""
    tags: str = ""
    """Build tags."""
    c_code: bool = False
    """Compiled with the machine's C compiler and libraries."""
    apart: bool = False
    """Not linked into the folder for the PATH: there are others of the same names."""

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return GO_FOLDER / (self.module or self.name)

    def key(self) -> str:
        """Changes when anything that determines the result does."""
        digest = hashlib.sha256(f"{sorted(self.packages.items())}{self.ldflags}{self.tags}".encode())
        if self.documents:
            digest.update(json.dumps(sorted(self.documents.items())).encode())
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(self.folder)).encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]


IMAGE_BUILDER = "buildkit"
_CLUSTER = "cluster"
_CONTAINERD = "containerd"
_PEERS = "peers"
_LWS = "lws"
_KUEUE = "kueue"
_KEDA = "keda"
_KUBERAY = "kuberay"
_SCHEDULER_PLUGINS = "scheduler-plugins"
_VOLCANO = "volcano"
NVIDIA = "nvidia"
SETS = (
    # First, so that images can be built while the rest is compiled.
    BinarySet(
        IMAGE_BUILDER,
        {"buildkitd": "github.com/moby/buildkit/cmd/buildkitd", "buildctl": "github.com/moby/buildkit/cmd/buildctl"},
    ),
    BinarySet(
        "kubernetes",
        {
            "etcd": "go.etcd.io/etcd/server/v3",
            "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
            "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
            "kubelet": "k8s.io/kubernetes/cmd/kubelet",
            "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
            "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        },
        ldflags=f"-s -w {_version_flags(KUBERNETES_VERSION)}",
        module=_CLUSTER,
    ),
    BinarySet(
        "addons",
        {
            "coredns": "./coredns",
            "kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        },
        module=_CLUSTER,
    ),
    # By itself: it imports logrus under its old name, Sirupsen, and one command can't build packages whose paths differ
    # in case alone.
    BinarySet("storage", {"local-path-provisioner": "github.com/rancher/local-path-provisioner"}, module=_CLUSTER),
    BinarySet("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, module=_CLUSTER),
    BinarySet("pause", {"pause": "."}),
    BinarySet(
        _CONTAINERD,
        {
            "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
            "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
        },
        lazy=True,
        tags="no_btrfs no_devmapper no_zfs",
        apart=True,
    ),
    BinarySet(
        "runc",
        {"runc": "github.com/opencontainers/runc"},
        ldflags="-s -w -extldflags -static",
        module=_CONTAINERD,
        lazy=True,
        tags="seccomp netgo osusergo",
        c_code=True,
        apart=True,
    ),
    BinarySet(
        NVIDIA,
        {
            "nvidia-device-plugin": "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
            "nvidia-cdi-hook": "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook",
        },
        # NVML's functions are found in the driver's library when they are first called, as in NVIDIA's own Makefiles.
        ldflags="-s -w -extldflags '-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'",
        lazy=True,
        c_code=True,
    ),
    BinarySet(
        "agent-sandbox",
        {"agent-sandbox-controller": "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"},
        module=_PEERS,
        documents={"agent-sandbox.yaml": ["sigs.k8s.io/agent-sandbox//k8s/crds/*.yaml"]},
        lazy=True,
    ),
    BinarySet(
        "kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        module=_PEERS,
        documents={
            "kwok-stages.yaml": [
                f"sigs.k8s.io/kwok//kustomize/stage/{stage}.yaml"
                for stage in (
                    "node/fast/node-initialize",
                    "node/heartbeat-with-lease/node-heartbeat-with-lease",
                    "pod/fast/pod-ready",
                    "pod/fast/pod-complete",
                    "pod/fast/pod-delete",
                )
            ]
        },
        lazy=True,
    ),
    # The kinds alone: that an API server takes our objects can be tried without the controller, which takes minutes.
    BinarySet(
        "crds-lws", {}, module=_LWS, documents={"lws.yaml": ["sigs.k8s.io/lws//config/crd/bases/*.yaml"]}, lazy=True
    ),
    BinarySet(
        _LWS,
        {"lws": "sigs.k8s.io/lws/cmd"},
        documents={"lws-webhooks.yaml": ["sigs.k8s.io/lws//config/webhook/manifests.yaml"]},
        lazy=True,
    ),
    BinarySet(
        "crds-kueue",
        {},
        module=_KUEUE,
        documents={"kueue.yaml": ["sigs.k8s.io/kueue//config/components/crd/bases/*.yaml"]},
        lazy=True,
    ),
    BinarySet(
        _KUEUE,
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        documents={"kueue-webhooks.yaml": ["sigs.k8s.io/kueue//config/components/webhook/manifests.yaml"]},
        lazy=True,
    ),
    BinarySet(
        "crds-scheduler-plugins",
        {},
        module=_SCHEDULER_PLUGINS,
        documents={"pod-groups.yaml": ["sigs.k8s.io/scheduler-plugins//manifests/coscheduling/crd.yaml"]},
        lazy=True,
    ),
    BinarySet(
        _SCHEDULER_PLUGINS,
        {"scheduler-plugins": "sigs.k8s.io/scheduler-plugins/cmd/scheduler"},
        lazy=True,
    ),
    BinarySet(
        "crds-volcano",
        {},
        module=_VOLCANO,
        documents={
            "volcano.yaml": [f"volcano.sh/volcano//config/crd/{part}/bases/*.yaml" for part in ("volcano", "jobflow")]
        },
        lazy=True,
    ),
    BinarySet(
        _VOLCANO,
        {
            "vc-scheduler": "volcano.sh/volcano/cmd/scheduler",
            "vc-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        },
        documents={
            "volcano-scheduler.conf": ["volcano.sh/volcano//installer/helm/chart/volcano/config/volcano-scheduler.conf"]
        },
        lazy=True,
    ),
    BinarySet(
        _KEDA,
        {
            "keda-operator": "github.com/kedacore/keda/v2/cmd/operator",
            "keda-adapter": "github.com/kedacore/keda/v2/cmd/adapter",
        },
        documents={"keda.yaml": ["github.com/kedacore/keda/v2//config/crd/bases/*.yaml"]},
        lazy=True,
    ),
    # For benchmarks beside it.
    BinarySet(
        _KUBERAY,
        {"ray-operator": "github.com/ray-project/kuberay/ray-operator"},
        documents={"kuberay.yaml": ["github.com/ray-project/kuberay/ray-operator//config/crd/bases/*.yaml"]},
        lazy=True,
    ),
)


CONTAINER_RUNTIME = (_CONTAINERD, "runc")
"""The sets that stand in for Debian's packages where containerd 2 is asked for."""
