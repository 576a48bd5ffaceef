"""Building with BuildKit straight into the kubelet's containerd: no registry, no copy, no compression."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from dev.cluster import containerd
from dev.files import write
from dev.host import processes
from dev.host.processes import Daemon
from dev.images.dockerfiles import Image
from dev.report import DevError, say, wait_until
from dev.settings import BASE_IMAGE, BUILD_DAEMON, CGROUP, Settings
from dev.shell import run, run_logged
from dev.supply.binaries import existing

_DEADLINE = 3600
_MIN_FREE_GB = 15

# Its records and containerd's layers belong together, so they share a folder of the cache.
_CONFIG = """\
root = "{root}"

[grpc]
  address = ["unix://{socket}"]

[otel]
  socketPath = "{otel}"

[worker.oci]
  enabled = false

[worker.containerd]
  enabled = true
  address = "{containerd}"
  namespace = "{namespace}"
  snapshotter = "overlayfs"
  networkMode = "host"
  defaultCgroupParent = "/{cgroup}/build"
  gc = true
  reservedSpace = "10GB"
  maxUsedSpace = "30GB"
  minFreeSpace = "{min_free}GB"
"""


def start(settings: Settings) -> None:
    """Start buildkitd unless it runs."""
    if processes.dead(settings, ["containerd"]):
        raise DevError("the cluster is not up", fix="dev/run cluster-up")
    if processes.dead(settings, [BUILD_DAEMON]):
        _match_store(settings)
    config = settings.state / "buildkitd.toml"
    write(
        config,
        _CONFIG.format(
            root=settings.buildkit_root,
            socket=settings.buildkit_socket,
            otel=settings.run / "buildkit-otel.sock",
            containerd=settings.containerd_socket,
            namespace=containerd.NAMESPACE,
            cgroup=CGROUP,
            min_free=_MIN_FREE_GB,
        ),
    )
    # It leaves empty folders there when it is stopped; cluster-down removes these.
    temporary = settings.state / "tmp"
    temporary.mkdir(mode=0o700, exist_ok=True)
    daemon = Daemon(BUILD_DAEMON, [existing(settings, "buildkitd"), f"--config={config}"], {"TMPDIR": str(temporary)})
    processes.start(settings, daemon)

    def answers() -> str:
        processes.require(settings, [BUILD_DAEMON])
        done = run([*_buildctl(settings), "debug", "workers"], check=False, deadline=10)
        return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-300:]

    fix = f"if its store is damaged: dev/run cluster-down, then remove {settings.store}"
    wait_until(BUILD_DAEMON, answers, deadline=30, log=daemon.log(settings), fix=fix)


def _match_store(settings: Settings) -> None:
    """Forget BuildKit's records if they were made with another containerd store: they name layers that it lacks."""
    identity = (settings.containerd_root / "io.containerd.grpc.v1.introspection" / "uuid").read_text()
    remembered = settings.buildkit_root / "containerd-store"
    if not remembered.exists() or remembered.read_text() != identity:
        shutil.rmtree(settings.buildkit_root, ignore_errors=True)
        settings.buildkit_root.mkdir(parents=True)
        write(remembered, identity)


def little_room(settings: Settings) -> str:
    """What is to be said of a disk that is nearly full: caches go, and in the end the base of all images does, after
    which a build asks a registry for it. Empty where there is room."""
    free = shutil.disk_usage(settings.store).free
    if free >= _MIN_FREE_GB * 10**9:
        return ""
    return (
        f"the disk of {settings.store} has {free / 10**9:.0f} GB free: below {_MIN_FREE_GB} BuildKit forgets what it "
        "built, and on a full disk the kubelet deletes images that no pod uses. Make room, and run this again"
    )


def build(settings: Settings, image: Image, secrets: Mapping[str, Path]) -> None:
    """Build one image, and see that the kubelet has it."""
    log = settings.logs / f"image-{image.name}.log"
    log.unlink(missing_ok=True)
    argv: list[str | Path] = [
        *_buildctl(settings),
        "build",
        "--progress=plain",
        "--frontend=dockerfile.v0",
        f"--local=context={image.context}",
        f"--local=dockerfile={image.dockerfile.parent}",
        # Never ask a registry for what is here.
        "--opt=image-resolve-mode=local",
        # Dockerfiles name Debian's image by digest, which is a registry's. Here it is made by dev/supply/rootfs.py.
        f"--opt=build-arg:BASE_IMAGE={BASE_IMAGE}",
        f"--output=type=image,name={image.reference},compression=uncompressed,unpack=true",
    ]
    argv += arguments(image)
    argv += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
    say(f"building {image.tag} …")
    started = time.monotonic()
    run_logged(
        argv,
        log=log,
        deadline=_DEADLINE,
        what=f"building {image.tag}",
        fix=f"mend {image.dockerfile.relative_to(image.context)}, or see dev/README.md, Images",
    )
    size = _size(settings, image)
    say(f"building {image.tag}: {time.monotonic() - started:.1f} s, {size}")


def arguments(image: Image) -> list[str]:
    """The image's build arguments, as BuildKit takes them."""
    return [f"--opt=build-arg:{name}={value}" for name, value in image.arguments.items()]


def _size(settings: Settings, image: Image) -> str:
    """The size that containerd tells; failing here means that the kubelet would not find the image either."""
    line = containerd.ctr(settings, "images", "list", f"name=={image.reference}").splitlines()[1:]
    if not line:
        raise DevError(f"{image.tag} was built, but containerd does not have it")
    words = line[0].split()
    return " ".join(words[3:5])


def _buildctl(settings: Settings) -> list[str | Path]:
    return [existing(settings, "buildctl"), f"--addr=unix://{settings.buildkit_socket}"]
