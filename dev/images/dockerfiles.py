"""Which images there are, and the order in which their Dockerfiles have to be built."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.report import DevError
from dev.settings import NAME, REPOSITORY

_LOCAL = re.compile(rf"\b{NAME}/([a-z0-9][a-z0-9-]*):dev\b")
_NAMING = ("FROM", "ARG", "COPY", "RUN")
"""Instructions that can name another image."""
_ARGUMENT = re.compile(r"ARG\s+(\w+)=")


_RUNTIME_FOR_GPUS = {"gpu": {"EXTRA": "inference-gpu"}, "sm90": {"EXTRA": "inference-gpu", "ARCHITECTURES": "90"}}
FOR_GPUS = {
    "runtime": _RUNTIME_FOR_GPUS,
    "inference": {kind: {"RUNTIME_IMAGE": f"{NAME}/runtime-{kind}:dev"} for kind in _RUNTIME_FOR_GPUS},
    "trainer": {kind: {"RUNTIME_IMAGE": f"{NAME}/runtime-{kind}:dev"} for kind in _RUNTIME_FOR_GPUS},
}
"""Images that are built again, as NAME-gpu for all GPUs and as NAME-sm90 for H100 and H200 alone, with these build
arguments: 8 GB, so by name only."""

BY_NAME_ONLY = {"debian", "gym-environments", "trainer-axolotl", "trainer-verl"}
"""Images that nothing in the development cluster uses: the base of a release, and gigabytes that some runs need."""

# Read as text: `dev/run` has nothing but Python itself.
_VALUES = REPOSITORY / "charts" / NAME / "values.yaml"
_DEFAULT = re.compile(rf"^  \w+: {NAME}/([a-z0-9-]+)$", re.MULTILINE)
_HAS_SANDBOXES = re.compile(r"^  sandboxes:", re.MULTILINE)
_OF_SANDBOXES = {"broker", "sandbox"}

PLACES = {
    REPOSITORY / "images": "",
    REPOSITORY / "examples" / "swe": "swe-",
    REPOSITORY / "examples" / "trainers": "trainer-",
}
"""Folders whose subfolders with a Dockerfile are images, and what their names begin with."""


@dataclass(frozen=True, slots=True)
class Image:
    """One folder that has a Dockerfile, or a variant of it."""

    name: str
    dockerfile: Path
    needs: frozenset[str]
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    """Build arguments."""
    by_name_only: bool = False
    """Built only when it is asked for, or needed by one that is."""
    context: Path = REPOSITORY
    """The folder that its Dockerfile copies from."""
    version: str = "dev"

    @property
    def reference(self) -> str:
        """Its full name, as Kubernetes and Docker write the short one out."""
        return f"docker.io/{self.tag}"

    @property
    def tag(self) -> str:
        """Its short name, as manifests have it."""
        return f"{NAME}/{self.name}:{self.version}"


def discover(*folders: Path) -> list[Image]:
    """All images, each after those that its Dockerfile names. `folders` stand in for PLACES."""
    places = dict.fromkeys(folders, "") or PLACES
    found = [_read(path, prefix) for folder, prefix in places.items() for path in sorted(folder.glob("*/Dockerfile"))]
    if not folders:
        found += [_for_gpus(image, kind) for image in found for kind in FOR_GPUS.get(image.name, ())]
    images = {image.name: image for image in found}
    for image in found:
        for missing in sorted(image.needs - images.keys()):
            raise DevError(f"{image.dockerfile} needs {NAME}/{missing}:dev, but there is no Dockerfile of that image")
    try:
        order = list(graphlib.TopologicalSorter({image.name: image.needs for image in found}).static_order())
    except graphlib.CycleError as error:
        raise DevError(f"images need each other in a circle: {' -> '.join(error.args[1])}") from None
    return [images[name] for name in order]


def select(images: list[Image], names: Sequence[str]) -> list[Image]:
    """The named images with all that they need, in building order; when none is named, all but those by name only."""
    if not names:
        return [image for image in images if not image.by_name_only]
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


def needed(example: Path) -> list[str]:
    """Names of the images that the operator and an example's run take: those of the chart's values, without what only
    sandboxes use where the run has none, and those that the example and the tasks beside it name."""
    try:
        text = _without_comments(example.read_text())
    except OSError as error:
        raise DevError(f"cannot read the example {example}: {error.strerror}") from None
    names = set(_DEFAULT.findall(_without_comments(_VALUES.read_text()))) | set(_LOCAL.findall(text))
    if not _HAS_SANDBOXES.search(text):
        return sorted(names - _OF_SANDBOXES)
    return sorted(names.union(*(_LOCAL.findall(tasks.read_text()) for tasks in example.parent.glob("*.jsonl"))))


def _without_comments(text: str) -> str:
    return "\n".join(line.partition(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))


def _read(dockerfile: Path, prefix: str) -> Image:
    name = prefix + dockerfile.parent.name
    return Image(name, dockerfile, _needs(dockerfile, {}) - {name}, by_name_only=name in BY_NAME_ONLY)


def _for_gpus(image: Image, kind: str) -> Image:
    arguments = FOR_GPUS[image.name][kind]
    needs = _needs(image.dockerfile, arguments)
    return Image(f"{image.name}-{kind}", image.dockerfile, needs, arguments, by_name_only=True)


def _needs(dockerfile: Path, arguments: Mapping[str, str]) -> frozenset[str]:
    """The images that a Dockerfile names. Values of build arguments count instead of their defaults."""
    needs = {name for value in arguments.values() for name in _LOCAL.findall(value)}
    for line in dockerfile.read_text().replace("\\\n", " ").splitlines():
        argument = _ARGUMENT.match(line.strip())
        if line.strip().upper().startswith(_NAMING) and not (argument and argument[1] in arguments):
            needs.update(_LOCAL.findall(line))
    return frozenset(needs)
