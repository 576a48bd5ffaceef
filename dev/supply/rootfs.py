"""debian:trixie-slim, made on this machine by debootstrap.

Where no registry answers, this image goes by the official name, so the same Dockerfiles build here and online.
It is the slim image (no documentation, no manuals, no translations) plus Python, which all our images install anyway.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from dev.host.mounts import remove_tree
from dev.report import step
from dev.settings import BASE_IMAGE, Settings
from dev.shell import run, run_logged
from dev.supply.archives import ImageConfig, write_image

_SUITE = "trixie"
_MIRROR = os.environ.get("GYMTRAIN_DEBIAN_MIRROR", "http://deb.debian.org/debian")
"""Only where the packages come from; the image itself always names the official mirror."""
PACKAGES = ("ca-certificates", "python3", "python3.13", "python3.13-venv")
_RECIPE = "1"
"""Raise it when the steps below change, so that cached images are made again."""

_SOURCES = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/info/*
"""


# Without these two, apt keeps its packages and a 90 MiB index of them in every layer that uses it.
_CLEAN = """\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";
"""


def key() -> str:
    """Changes when the image would."""
    return hashlib.sha256(f"{_SUITE} {PACKAGES} {_RECIPE} {_SOURCES} {_SLIM} {_CLEAN}".encode()).hexdigest()[:12]


def archive(settings: Settings) -> Path:
    """The image archive's place in the cache."""
    return settings.cache / "base" / f"debian-{_SUITE}-{key()}.oci.tar"


def ensure(settings: Settings) -> Path:
    """The image archive, from the cache or made now."""
    made = archive(settings)
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    # debootstrap mounts /proc inside: a folder left by a broken run is in the state, where cluster-down looks.
    root = settings.state / f"debootstrap-{os.getpid()}"
    layer = made.with_suffix(".layer")
    log = settings.cache / "logs" / "debootstrap.log"
    with step(f"making {BASE_IMAGE} with debootstrap"):
        try:
            run_logged(
                ["nice", "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", _SUITE, root, _MIRROR],
                log=log,
                deadline=900,
                what="debootstrap",
                fix=f"see the log; {_MIRROR} must be reachable (or set GYMTRAIN_DEBIAN_MIRROR), "
                f"and the debian-archive-keyring must know {_SUITE}",
            )
            _slim(root)
            run(["tar", "--numeric-owner", "--sort=name", "-C", root, "-cf", layer, "."], deadline=120)
            write_image(made, BASE_IMAGE, layer, ImageConfig(command=("bash",)))
        finally:
            layer.unlink(missing_ok=True)
            remove_tree(root)
            with suppress(OSError):  # so that nobody takes an empty folder for what an earlier cluster left
                settings.state.rmdir()
    for stale in made.parent.glob("debian-*.oci.tar*"):
        if stale != made:
            stale.unlink()
    return made


def _slim(root: Path) -> None:
    """What the official slim image leaves out, and its package sources."""
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(_SLIM)
    (root / "etc/apt/apt.conf.d/docker-clean").write_text(_CLEAN)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    (root / "etc/apt/sources.list.d/debian.sources").write_text(_SOURCES)
    for name in ("resolv.conf", "hostname"):
        (root / "etc" / name).unlink(missing_ok=True)
    for folder in ("usr/share/man", "usr/share/locale", "usr/share/info", "var/lib/apt/lists", "var/log"):
        _empty(root / folder)
    for folder in ("dev", "proc", "sys", "run", "tmp"):
        _empty(root / folder)
    for archive in (root / "var/cache/apt").rglob("*"):
        if archive.is_file():
            archive.unlink()
    for path in (root / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()


def _empty(folder: Path) -> None:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
