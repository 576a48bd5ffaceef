"""The cluster's programs, built from pinned Go modules and cached by what went into them.

The cache folder of a set is named by the hash of its go.mod, go.sum, sources and flags, is filled under another name
and renamed when complete, and holds checksums that are verified before a cluster starts from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.report import DevError, say, step
from dev.settings import KUBERNETES_VERSION, Settings
from dev.shell import run, run_logged
from dev.supply.modules import fetched_ahead
from dev.supply.toolchain import GO_FOLDER, Go, find

_MANIFEST = "checksums.json"


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
    """Program name to Go package."""
    ldflags: str = "-s -w"
    module: str = ""
    """Folder of the go.mod; named as the set where empty."""
    documents: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Files kept beside the programs, each joined from files of modules: name to `MODULE//PATTERN`."""
    lazy: bool = False
    """Built only when asked for by name."""

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return GO_FOLDER / (self.module or self.name)

    def key(self) -> str:
        """Changes when anything that determines the result does."""
        digest = hashlib.sha256(f"{sorted(self.packages.items())}{self.ldflags}".encode())
        if self.documents:
            digest.update(json.dumps(sorted(self.documents.items())).encode())
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(self.folder)).encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]


_CLUSTER = "cluster"
_PEERS = "peers"
SETS = (
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
            "local-path-provisioner": "github.com/rancher/local-path-provisioner",
        },
        module=_CLUSTER,
    ),
    BinarySet("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, module=_CLUSTER),
    BinarySet("pause", {"pause": "."}),
    BinarySet(
        "buildkit",
        {"buildkitd": "github.com/moby/buildkit/cmd/buildkitd", "buildctl": "github.com/moby/buildkit/cmd/buildctl"},
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
)


def ensure(settings: Settings, names: Sequence[str] = ()) -> dict[str, Path]:
    """Build what the cache lacks, of the sets that a cluster needs or the named ones; returns each file's path."""
    sets = {binaries.name: binaries for binaries in SETS}
    if unknown := sorted(set(names) - sets.keys()):
        raise DevError(f"no such set of programs: {', '.join(unknown)}", fix=f"one of: {', '.join(sets)}")
    wanted = [
        (binaries, settings.cache / "bin-sets" / f"{binaries.name}-{binaries.key()}")
        for binaries in [sets[name] for name in names] or [one for one in SETS if not one.lazy]
    ]
    missing = [(binaries, folder) for binaries, folder in wanted if not _is_whole(folder)]
    if missing:
        go = find(settings)
        later: dict[Path, list[str]] = {}
        for binaries, _ in missing[1:]:
            later.setdefault(binaries.folder, []).extend(binaries.packages.values())
        with fetched_ahead(go, later, settings.cache / "logs" / "modules.log"):
            for binaries, folder in missing:
                if folder.exists():
                    say(f"{folder} is damaged: building it anew")
                _build(settings, go, binaries, folder)
    programs = {name: folder / name for binaries, folder in wanted for name in binaries.packages}
    _link(settings, programs)
    return programs | {name: folder / name for binaries, folder in wanted for name in binaries.documents}


def existing(settings: Settings, program: str) -> Path:
    """The stable path of a program that was built before."""
    return settings.programs / program


def _is_whole(folder: Path) -> bool:
    try:
        expected: dict[str, str] = json.loads((folder / _MANIFEST).read_text())
        return all(_checksum(folder / name) == checksum for name, checksum in expected.items())
    except (OSError, ValueError):
        return False


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(settings: Settings, go: Go, binaries: BinarySet, folder: Path) -> None:
    temporary = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    log = settings.cache / "logs" / f"build-{binaries.name}.log"
    # The linker drops debug information anyway (-s -w); not making it, and collecting garbage less often, takes a fifth
    # off the compiler's time.
    command: list[str | Path] = ["nice", go.program, "build", "-p", "2", "-trimpath", "-buildvcs=false"]
    command.append("-gcflags=all=-dwarf=false")
    for name, package in binaries.packages.items():
        with step(f"building {name}"):
            run_logged(
                [*command, "-ldflags", binaries.ldflags, "-o", temporary / name, package],
                log=log,
                deadline=3600,
                what=f"building {name}",
                fix="see the log; the Go module proxy must be reachable (`go env GOPROXY`)",
                env=go.env | {"CGO_ENABLED": "0", "GOGC": "400"},
                cwd=binaries.folder,
            )
    for name, patterns in binaries.documents.items():
        (temporary / name).write_text("\n---\n".join(_texts(go, binaries, patterns)))
    names = [*binaries.packages, *binaries.documents]
    (temporary / _MANIFEST).write_text(json.dumps({name: _checksum(temporary / name) for name in names}))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    for stale in folder.parent.glob(f"{binaries.name}-*"):
        if stale != folder:
            shutil.rmtree(stale, ignore_errors=True)


def _texts(go: Go, binaries: BinarySet, patterns: Sequence[str]) -> Iterator[str]:
    """Files of modules that the build has just fetched."""
    for place in patterns:
        module, _, pattern = place.partition("//")
        found = run([go.program, "list", "-m", "-f", "{{.Dir}}", module], env=go.env, cwd=binaries.folder)
        files = sorted(Path(found.stdout.strip()).glob(pattern))
        if not files:
            raise DevError(f"module {module} holds no {pattern}", fix=f"see {binaries.folder / 'go.mod'}")
        yield from (file.read_text() for file in files)


def _link(settings: Settings, programs: Mapping[str, Path]) -> None:
    """One folder for the PATH: kubectl and helm are useful to people and tests."""
    folder = settings.programs
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in programs.items():
        temporary = folder / f".{name}.tmp-{os.getpid()}"
        temporary.symlink_to(path)
        temporary.replace(folder / name)
