"""containerd for the kubelet and BuildKit: its configuration, its images, and forgetting old containers."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from dev.files import write
from dev.host import processes
from dev.host.network import write_cni
from dev.host.packages import CNI_PLUGINS
from dev.host.processes import Daemon
from dev.report import DevError, wait_until
from dev.settings import BASE_IMAGE, Settings
from dev.shell import environment, run
from dev.supply import binaries, rootfs
from dev.supply.archives import ImageConfig, write_image, write_program_layer

NAMESPACE = "k8s.io"
PAUSE_IMAGE = "docker.io/gymtrain-dev/pause:1"
PROGRAM_IMAGES = {
    "pause": PAUSE_IMAGE,
    "coredns": "docker.io/gymtrain-dev/coredns:1",
    "local-path-provisioner": "docker.io/gymtrain-dev/local-path-provisioner:1",
}

# Root inside some virtual machines lacks CAP_SYS_RESOURCE, and then may not lower a process's OOM score:
# with restrict_oom_score_adj runc does not try, where otherwise each sandbox would die at its start.
_CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.internal.v1.opt",
]

[grpc]
  address = "{socket}"

[ttrpc]
  address = "{socket}.ttrpc"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  max_container_log_line_size = 262144
  # Seconds between looks at the disk that containers take, 10 by default. It walks what BuildKit has not committed too,
  # such as uv's cache, of some 100,000 files: a fifth of a core.
  stats_collect_period = 30

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{runc}"
        BinaryName = "{runc_program}"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "{cni}"
"""


def daemon(settings: Settings) -> Daemon:
    """Write the configuration and say how to start it."""
    settings.run.mkdir(parents=True, exist_ok=True)
    config = settings.state / "containerd.toml"
    write(
        config,
        _CONFIG.format(
            root=settings.containerd_root,
            state=settings.run / "containerd",
            socket=settings.containerd_socket,
            pause=PAUSE_IMAGE,
            runc=settings.run / "runc",
            runc_program=_program(settings, "runc"),
            cni=write_cni(settings),
            cni_plugins=CNI_PLUGINS,
        ),
    )
    program = _program(settings, "containerd")
    path = {}
    if settings.containerd_2.exists():
        # It looks for its shim on the PATH, and the shim for runc where BuildKit made the container: the name of the
        # program above is for the kubelet's containers alone.
        folders = [str(Path(_program(settings, name)).parent) for name in ("containerd", "runc")]
        path = {"PATH": ":".join([*folders, environment(None)["PATH"]])}
    return Daemon("containerd", [program, "--config", config, "--log-level", "warn"], path)


def _program(settings: Settings, name: str) -> str:
    """Debian's, by its name, or the path of the one from Go modules."""
    if not settings.containerd_2.exists():
        return name
    return str(binaries.apart(settings, name))


def start(settings: Settings) -> None:
    """Start it and wait for its API."""
    service = daemon(settings)
    processes.start(settings, service)

    def answers() -> str:
        said = ctr(settings, "version", check=False)
        return "" if "Server:" in said and "Revision" in said.partition("Server:")[2] else said.strip()[-300:]

    fix = f"if its store is damaged, remove {settings.store} (images are then built again)"
    wait_until("containerd", answers, deadline=30, fix=fix, log=service.log(settings))


def ctr(settings: Settings, *arguments: str | Path, check: bool = True, deadline: float = 60) -> str:
    """The one that matches the daemon."""
    done = run(
        [_program(settings, "ctr"), "--address", settings.containerd_socket, "--namespace", NAMESPACE, *arguments],
        check=check,
        deadline=deadline,
    )
    return done.stdout + done.stderr


def forget_containers(settings: Settings) -> None:
    """Drop the records of an earlier cluster's containers, which containerd keeps beside the images."""
    for task in ctr(settings, "tasks", "list", "--quiet").split():
        ctr(settings, "tasks", "delete", "--force", task, check=False)
    for container in ctr(settings, "containers", "list", "--quiet").split():
        ctr(settings, "containers", "delete", container, check=False)


def forget_sandbox_files(settings: Settings) -> None:
    """The files that belong to those containers. Only while containerd is stopped."""
    for kind in ("sandboxes", "containers"):
        shutil.rmtree(settings.containerd_root / "io.containerd.grpc.v1.cri" / kind, ignore_errors=True)


def forget_untagged(settings: Settings) -> None:
    """Drop images that a newer build took the name from. The kubelet's own collection is off: it would take
    named ones too, and there is no registry to get them back from."""
    lines = ctr(settings, "images", "list").splitlines()[1:]
    digests = {words[0]: words[2] for words in map(str.split, lines) if len(words) > 2}
    named = {digest for name, digest in digests.items() if not name.startswith("sha256:")}
    if stale := [name for name, digest in digests.items() if digest not in named]:
        ctr(settings, "images", "remove", *stale, check=False, deadline=120)


def load_images(settings: Settings, programs: dict[str, Path]) -> None:
    """Import the images that the cluster itself runs, and the base, unless this very content is there already."""
    for program, image in PROGRAM_IMAGES.items():
        key = programs[program].parent.name
        if _has(settings, image, key):
            continue
        with TemporaryDirectory(dir=settings.state) as folder:
            layer, archive = Path(folder) / "layer.tar", Path(folder) / "image.tar"
            write_program_layer(layer, {f"/{program}": programs[program]})
            write_image(archive, image, layer, ImageConfig(entrypoint=[f"/{program}"], user="65532:65532"))
            _import(settings, archive, image, key)
    load_base(settings)


def load_base(settings: Settings) -> None:
    """Import the base of all images that are built here, unless it is there already."""
    base = rootfs.ensure(settings)
    if not _has(settings, BASE_IMAGE, rootfs.key()):
        try:
            _import(settings, base, BASE_IMAGE, rootfs.key())
        except DevError as error:
            # containerd checks digests, so a damaged archive ends here.
            base.unlink()
            raise DevError(
                error.what, fix="the cached archive was damaged and has been removed: run it again"
            ) from None


def load_archive(settings: Settings, archive: Path) -> None:
    """Import the images of an OCI archive, under the names that it has."""
    if not archive.exists():
        raise DevError(f"there is no {archive}")
    ctr(settings, "images", "import", archive, deadline=600)


def _marker(image: str, key: str) -> str:
    """A second name of an image, which tells what it was made from."""
    return f"{image}-{key}"


def _has(settings: Settings, image: str, key: str) -> bool:
    present = ctr(settings, "images", "list", "--quiet").split()
    return image in present and _marker(image, key) in present


def _import(settings: Settings, archive: Path, image: str, key: str) -> None:
    for name in ctr(settings, "images", "list", "--quiet").split():
        if name.startswith(_marker(image, "")):
            ctr(settings, "images", "remove", name)
    ctr(settings, "images", "import", archive, deadline=120)
    ctr(settings, "images", "tag", "--force", image, _marker(image, key))
