"""`dev/gpu/bundle/make`: packs the development cluster, its programs and its images into parts for a GPU machine.

The machine needs Python 3.12, tar, xz, root, and an NVIDIA driver; no network, no packages, no container engine. There,
in the repository, for each part and then as often as wanted:

    python3 -m dev.gpu.bundle.machine receive PART
    python3 -m dev.gpu.bundle.machine run COMMAND ...
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.gpu.bundle import images, parts
from dev.images import buildkit
from dev.images.dockerfiles import discover, needed, select
from dev.images.secrets import build_secrets
from dev.lock import exclusive
from dev.providers.local import Local
from dev.report import DevError, say, step
from dev.settings import REPOSITORY, Settings
from dev.shell import run
from dev.supply import binaries, rootfs
from dev.supply.sets import CONTAINER_RUNTIME, NVIDIA, SETS

_FOR_GPUS = {"inference": "inference-sm90", "trainer": "trainer-sm90"}
_MORE_IMAGES = ("gym", "model-smollm2")


def _images(examples: Sequence[Path]) -> list[str]:
    """Those that the examples need, with the ones for GPUs in the place of those for CPUs."""
    names = {name for example in examples for name in needed(example)} | set(_MORE_IMAGES)
    return sorted(_FOR_GPUS.get(name, name) for name in names)


def _root(settings: Settings, archive: Path) -> None:
    """The root file system, from this folder's Dockerfile; made again only where what it is made from has changed."""
    sources = [Path(__file__).parent / "Dockerfile", REPOSITORY / "uv.lock"]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    made_from = archive.with_suffix(".key")
    if archive.exists() and made_from.exists() and made_from.read_text() == key:
        return
    made_from.unlink(missing_ok=True)
    with exclusive(settings):
        buildkit.start(settings)
    tar = archive.with_suffix("")
    argv: list[str | Path] = [
        binaries.existing(settings, "buildctl"),
        f"--addr=unix://{settings.buildkit_socket}",
        "build",
        "--frontend=dockerfile.v0",
        f"--local=context={REPOSITORY}",
        f"--local=dockerfile={Path(__file__).parent}",
        "--opt=image-resolve-mode=local",
        f"--output=type=tar,dest={tar}",
    ]
    with build_secrets() as secrets:
        argv += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        run(argv, deadline=1800)
    run(["nice", "xz", "-T0", "-3", "--force", tar], deadline=1800)
    made_from.write_text(key)


def _cache(settings: Settings, archive: Path) -> None:
    """What `dev/run cluster-up` finds in its cache: programs, and the base image."""
    lazy = (*CONTAINER_RUNTIME, NVIDIA)
    with exclusive(settings):
        binaries.ensure(settings)
        binaries.ensure(settings, lazy)
        base = rootfs.ensure(settings)
    sets = [one for one in SETS if not one.lazy or one.name in lazy]
    folders = [f"bin-sets/{one.name}-{one.key()}" for one in sets]
    tar = archive.with_suffix("")
    names = [*folders, str(base.relative_to(settings.cache))]
    run(["tar", "--create", "--file", tar, "--directory", settings.cache, *names], deadline=300)
    run(["nice", "zstd", *images.ZSTD, "--rm", "--force", tar, "-o", archive], deadline=1800)


def main() -> int:
    """Make the bundle."""
    parser = argparse.ArgumentParser(prog="dev/gpu/bundle/make", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=REPOSITORY / ".bundle", help="folder for the parts (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="use the images as they are in the cluster")
    parser.add_argument(
        "examples",
        type=Path,
        nargs="*",
        default=[REPOSITORY / "examples" / "quickstart.yaml"],
        help="runs whose images come along (quickstart)",
    )
    arguments = parser.parse_args()
    os.umask(0o022)
    settings = Settings()
    if shutil.which("zstd") is None or shutil.which("xz") is None:
        raise DevError("zstd or xz is not there", fix="apt-get install zstd xz-utils")
    if run(["pkg-config", "--exists", "libseccomp"], check=False, deadline=10).returncode:
        raise DevError(
            "runc can't be built: libseccomp's headers are not there", fix="apt-get install libseccomp-dev pkg-config"
        )
    work: Path = arguments.into / "work"
    work.mkdir(parents=True, exist_ok=True)
    names = _images(arguments.examples)
    if not arguments.keep:
        Local(settings).images(names)
    files = {name: work / name for name in ("root.tar.xz", "cache.tar.zst", "images.tar")}
    with step("packing the root file system"):
        _root(settings, files["root.tar.xz"])
    with step("packing the programs"):
        _cache(settings, files["cache.tar.zst"])
    with step(f"packing {', '.join(names)}"):
        references = [image.reference for image in select(discover(), names) if image.name in names]
        images.write(settings, references, files["images.tar"], work / "layers")
    made = parts.cut(files, arguments.into / "parts")
    for name, path in files.items():
        say(f"{name}: {path.stat().st_size / 1e6:.0f} MB")
    files["images.tar"].unlink()  # its layers are kept, and it is as large as all of them
    say(f"{len(made)} parts in {arguments.into / 'parts'}")
    return 0


try:
    sys.exit(main())
except DevError as error:
    print(error.render(), file=sys.stderr)
    sys.exit(1)
