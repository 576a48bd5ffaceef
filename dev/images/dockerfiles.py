"""Which images there are, and the order in which their Dockerfiles have to be built."""

from __future__ import annotations

import graphlib
import re
from dataclasses import dataclass
from pathlib import Path

from dev.report import DevError
from dev.settings import NAME, REPOSITORY

_LOCAL = re.compile(rf"\b{NAME}/([a-z0-9][a-z0-9-]*):dev\b")
_NAMING = ("FROM", "ARG", "COPY", "RUN")
"""Instructions that can name another image."""


PLACES = {REPOSITORY / "images": "", REPOSITORY / "examples" / "swe": "swe-"}
"""Folders whose subfolders with a Dockerfile are images, and what their names begin with."""


@dataclass(frozen=True, slots=True)
class Image:
    """One folder that has a Dockerfile."""

    name: str
    dockerfile: Path
    needs: frozenset[str]

    @property
    def reference(self) -> str:
        """Its full name, as Kubernetes and Docker write the short one out."""
        return f"docker.io/{NAME}/{self.name}:dev"

    @property
    def tag(self) -> str:
        """Its short name, as manifests have it."""
        return f"{NAME}/{self.name}:dev"


def discover(*folders: Path) -> list[Image]:
    """All images, each after those that its Dockerfile names. `folders` stand in for PLACES."""
    places = dict.fromkeys(folders, "") or PLACES
    found = [_read(path, prefix) for folder, prefix in places.items() for path in sorted(folder.glob("*/Dockerfile"))]
    images = {image.name: image for image in found}
    for image in found:
        for missing in sorted(image.needs - images.keys()):
            raise DevError(f"{image.dockerfile} needs {NAME}/{missing}:dev, but there is no Dockerfile of that image")
    try:
        order = list(graphlib.TopologicalSorter({image.name: image.needs for image in found}).static_order())
    except graphlib.CycleError as error:
        raise DevError(f"images need each other in a circle: {' -> '.join(error.args[1])}") from None
    return [images[name] for name in order]


def select(images: list[Image], names: list[str]) -> list[Image]:
    """The named images with all that they need, in building order; all of them when none is named."""
    if not names:
        return images
    by_name = {image.name: image for image in images}
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in by_name:
            raise DevError(f"there is no image {name}", fix=f"one of: {', '.join(by_name)}")
        if name not in wanted:
            wanted.add(name)
            pending += by_name[name].needs
    return [image for image in images if image.name in wanted]


def _read(dockerfile: Path, prefix: str) -> Image:
    name = prefix + dockerfile.parent.name
    needs: set[str] = set()
    for line in dockerfile.read_text().replace("\\\n", " ").splitlines():
        if line.strip().upper().startswith(_NAMING):
            needs.update(_LOCAL.findall(line))
    return Image(name, dockerfile, frozenset(needs - {name}))
