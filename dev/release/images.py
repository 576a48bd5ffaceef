"""Building a release's images: each with BuildKit, upon the ones before it by digest, with provenance."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.images.dockerfiles import Image, discover, select
from dev.images.secrets import build_secrets
from dev.release.base import Base, check_platform
from dev.report import DevError, say, step
from dev.settings import NAME, REPOSITORY
from dev.shell import run_logged

BASE = "debian"
"""The image that stands for Debian's own."""
OF_THE_CHART = ("operator", "gym", "gateway", "inference", "trainer", "broker", "sandbox")
FOR_GPUS = ("inference-gpu", "trainer-gpu")
BESIDE = ("gym-swe", "gym-environments")
ALL = (*OF_THE_CHART, *FOR_GPUS, *BESIDE)
_SECONDS = 7200


@dataclass(frozen=True, slots=True)
class Builder:
    """How images are built, and where they go.

    Attributes:
        buildctl: program and address.
        version: of the release.
        registry: HOST/PATH that they are pushed to; empty: into folders, as OCI layouts.
        out: the release's folder.
        work: where logs and what BuildKit tells go; no part of the release.
        sbom_generator: image, by digest, of BuildKit's scanner; empty: no attestation of packages.
        base: what stands in place of the image `debian`.
    """

    buildctl: Sequence[str]
    version: str
    registry: str
    out: Path
    work: Path
    sbom_generator: str = ""
    base: Base | None = None

    def layout(self, name: str) -> Path:
        """Folder of an image's OCI layout."""
        return self.out / "images" / name

    def name(self, name: str) -> str:
        """An image's name in the registry."""
        return f"{self.registry}/{NAME}/{name}"

    def command(self, image: Image, made: Mapping[str, str], metadata: Path) -> list[str]:
        """The build of one image.

        Args:
            image: what to build.
            made: digests of images that were built before, by name: those that it needs.
            metadata: where BuildKit writes the digest.
        """
        arguments = dict(image.arguments) | {"VERSION": self.version}
        needs = set(image.needs)
        if image.name != BASE:
            arguments["BASE_IMAGE"] = f"{NAME}/{BASE}:dev"
            needs.add(BASE)
        attests = ["--opt=attest:provenance=mode=max"]
        if self.sbom_generator:
            attests.append(f"--opt=attest:sbom=generator={self.sbom_generator}")
        return [
            *self.buildctl,
            "build",
            "--progress=plain",
            "--frontend=dockerfile.v0",
            f"--local=context={REPOSITORY}",
            f"--local=dockerfile={image.dockerfile.parent}",
            f"--metadata-file={metadata}",
            *attests,
            *(f"--opt=build-arg:{key}={value}" for key, value in sorted(arguments.items())),
            *(part for need in sorted(needs) for part in self._context(need, made)),
            self._output(image.name),
        ]

    def _context(self, need: str, made: Mapping[str, str]) -> list[str]:
        """What stands for an image that a Dockerfile names gymtrain/NEED:dev."""
        key = f"--opt=context:{NAME}/{need}:dev"
        if self.base and need == BASE:
            digest, folder = self.base.digest, self.base.folder
        elif self.registry:
            return [f"{key}=docker-image://{self.name(need)}@{made[need]}"]
        else:
            digest, folder = made[need], self.layout(need)
        return [f"{key}=oci-layout://{need}@{digest}", f"--oci-layout={need}={folder}"]

    def _output(self, name: str) -> str:
        if self.registry:
            # Not into the store of the cluster whose BuildKit this may be.
            where = f"type=image,name={self.name(name)}:{self.version},push=true,store=false,oci-mediatypes=true"
        else:
            where = f"type=oci,tar=false,dest={self.layout(name)},name={NAME}/{name}:{self.version}"
        # Else a step that the cluster built before comes as it has it: not compressed, 3 GB for 1.
        return f"--output={where},compression=gzip,force-compression=true"


def wanted(names: Sequence[str], *, without_base: bool = False) -> list[Image]:
    """The named images with all that they stand upon, in building order; without the first, which another replaces."""
    chosen = sorted(
        select(discover(), [BASE, *names]), key=lambda image: image.name != BASE
    )  # others in the order they had
    return chosen[1:] if without_base else chosen


def build(
    builder: Builder,
    images: Sequence[Image],
    before: Mapping[str, str] | None = None,
    tell: Callable[[Mapping[str, str]], None] = lambda made: None,
) -> dict[str, str]:
    """Builds them, one after the other.

    Args:
        builder: how.
        images: which, in building order.
        before: what was built before, of the same commit upon the same base: not built again.
        tell: is told of all that are built, after each.

    Returns:
        Digest of each by name: of the index that holds the image and what is attested of it.

    Raises:
        DevError: a build failed, or told no digest; the base is of another platform.
    """
    if builder.base:
        check_platform(builder.base, builder.buildctl)
    made = dict(before or {})
    builder.work.mkdir(parents=True, exist_ok=True)
    if not builder.registry:
        (builder.out / "images").mkdir(parents=True, exist_ok=True)
    with build_secrets() as secrets:
        hidden = [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        for image in images:
            if image.name in made and (builder.registry or (builder.layout(image.name) / "index.json").is_file()):
                say(f"{image.name}: {made[image.name]}, built before")
                continue
            metadata = builder.work / f"{image.name}.json"
            # A layout that a broken build left would stay in the new one.
            shutil.rmtree(builder.layout(image.name), ignore_errors=True)
            log = builder.work / f"{image.name}.log"
            with step(f"building {image.name}"):
                what = f"building {image.name}"
                run_logged([*builder.command(image, made, metadata), *hidden], log=log, deadline=_SECONDS, what=what)
            if not builder.registry:
                share(builder.layout(image.name), builder.out / "images")
            made[image.name] = digest_of(metadata.read_text(), image.name)
            tell(made)
            say(f"{image.name}: {made[image.name]}")
    return made


def share(layout: Path, layouts: Path) -> None:
    """Makes blobs that another layout has, too, one file with its: gigabytes of one runtime are in three images."""
    for blob in (layout / "blobs").glob("*/*"):
        place = blob.relative_to(layout)
        found = (other / place for other in layouts.iterdir() if other != layout and (other / place).is_file())
        if other := next(found, None):
            # Its name is its content's digest.
            blob.unlink()
            blob.hardlink_to(other)


def digest_of(metadata: str, name: str) -> str:
    """The digest that BuildKit tells.

    Raises:
        DevError: there is none.
    """
    digest = json.loads(metadata).get("containerimage.digest", "")
    if not str(digest).startswith("sha256:"):
        raise DevError(
            f"BuildKit built {name}, but told no digest of it", fix="update BuildKit: dev/go/buildkit/go.mod"
        )
    return str(digest)
