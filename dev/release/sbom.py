"""Which Python packages are in an image or archive, as CycloneDX documents, from the lock file.

Debian's packages are not in them: that takes a scanner of images, which BuildKit runs if `--sbom-generator` names it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.images.dockerfiles import Image, discover
from dev.report import DevError
from dev.settings import REPOSITORY
from dev.shell import run

_EXTRA = re.compile(r"--extra \"?(\$?\{?[\w-]+\}?)\"?")
_DEFAULT = re.compile(r"^ARG EXTRA=(\S+)$", re.MULTILINE)
_STAND_INS = REPOSITORY / "images" / "runtime" / "gpu_stand_ins.py"
_SECONDS = 120


def extras(image: Image) -> list[str]:
    """The extras of pyproject.toml that an image's own Dockerfile installs."""
    text = re.sub(r"^#.*$", "", image.dockerfile.read_text(), flags=re.MULTILINE)
    default = _DEFAULT.search(text)
    chosen = image.arguments.get("EXTRA", default[1] if default else "")
    return sorted({chosen if name.startswith("$") else name for name in _EXTRA.findall(text)})


def with_bases(name: str) -> list[str]:
    """The extras that are in an image, those of what it stands upon included."""
    images = {image.name: image for image in discover()}
    found: set[str] = set()
    pending = [name]
    while pending:
        image = images[pending.pop()]
        found |= set(extras(image))
        pending += image.needs
    return sorted(found)


def document(uv: str, names: Sequence[str]) -> str:
    """The packages of these extras on Linux, by the lock file.

    Raises:
        DevError: uv fails.
    """
    options = [f"--extra={name}" for name in names]
    if "inference" in names:  # what the images for CPUs leave out
        options += run([sys.executable, _STAND_INS, "--export-options"]).stdout.split()
    argv = [uv, "export", "--quiet", "--format", "cyclonedx1.5", "--locked", "--no-default-groups", "--no-emit-project"]
    done = run([*argv, "--python", sys.executable, "--project", str(REPOSITORY), *options], deadline=_SECONDS)
    if '"CycloneDX"' not in done.stdout:
        raise DevError(f"{uv} wrote no CycloneDX document", fix="take the version of images/python-build/uv.txt")
    return done.stdout


def write(uv: str, images: Sequence[str], out: Path) -> list[Path]:
    """A document for each image that has Python packages, and one for the command line."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = {f"image-{name}": with_bases(name) for name in images} | {"kubectl-gymtrain": ["cli"]}
    paths: list[Path] = []
    for name, chosen in wanted.items():
        if chosen:
            paths.append(out / f"{name}.cdx.json")
            paths[-1].write_text(document(uv, chosen))
    return paths
