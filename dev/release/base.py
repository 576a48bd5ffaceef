"""A base that somebody names in place of images/debian: one image in a folder, an OCI layout, known by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.report import DevError
from dev.shell import run

_ATTESTS = "vnd.docker.reference.type"
"""Annotation of what lies beside an image and is none."""
_FIX = "see docs/releases.md, A base of your own"


@dataclass(frozen=True, slots=True)
class Base:
    """What images are built upon.

    Attributes:
        folder: the layout.
        digest: of the one entry of its index.json.
        platform: such as linux/amd64, by the image's own configuration.
    """

    folder: Path
    digest: str
    platform: str


def read(folder: Path) -> Base:
    """The image in the folder, whose every blob is there.

    Raises:
        DevError: the folder is no OCI layout, hasn't exactly one image, or has a part of it.
    """
    if not (folder / "oci-layout").is_file():
        raise DevError(f"--base {folder} is no OCI layout: there is no file oci-layout in it", fix=_FIX)
    try:
        entries = json.loads((folder / "index.json").read_bytes())["manifests"]
        images = _images(folder, entries)
        if len(images) != 1:
            raise DevError(f"--base {folder} has {len(images)} images, and a base is one of one platform", fix=_FIX)
        for layer in images[0]["layers"]:
            _path(folder, layer["digest"])
        config = _json(folder, images[0]["config"]["digest"])
        return Base(folder, entries[0]["digest"], f"{config['os']}/{config['architecture']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevError(f"--base {folder} is no OCI layout: {type(error).__name__}: {error}", fix=_FIX) from None


def check_platform(base: Base, buildctl: Sequence[str]) -> None:
    """Refuses a base of another platform than BuildKit's own: its first step would end with "exec format error".

    Raises:
        DevError: as said, or BuildKit doesn't answer.
    """
    workers = json.loads(run([*buildctl, "debug", "workers", "--format", "{{json .}}"]).stdout)
    first = workers[0]["platforms"][0]
    own = f"{first['os']}/{first['architecture']}"
    if own != base.platform:
        raise DevError(f"--base {base.folder} is for {base.platform}, and this BuildKit builds for {own}", fix=_FIX)


def _images(folder: Path, entries: Sequence[Any]) -> list[Any]:
    """Manifests of the images, those in an index of several among them."""
    found: list[Any] = []
    for entry in entries:
        if _ATTESTS not in entry.get("annotations", {}):
            manifest = _json(folder, entry["digest"])
            found += _images(folder, manifest["manifests"]) if "manifests" in manifest else [manifest]
    return found


def _json(folder: Path, digest: str) -> Any:
    content = _path(folder, digest).read_bytes()
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise DevError(f"--base {folder}: what it has as {digest} is not {digest}", fix=_FIX)
    return json.loads(content)


def _path(folder: Path, digest: str) -> Path:
    path = folder / "blobs" / digest.replace(":", "/")
    if not path.is_file():
        raise DevError(f"--base {folder} lacks {digest}, which its image names", fix=_FIX)
    return path
