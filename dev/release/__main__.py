"""Makes a release, or parts of it, in a folder of its own.

python -m dev.release --version 0.2.0 --repository https://example.com/gymtrain --base-url https://downloads.example.com/v0.2.0
                      [--registry HOST/PATH] [--out dist/0.2.0] [--part PART ...] [--image NAME ...]
                      [--base FOLDER]
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dev import krew
from dev.lock import exclusive
from dev.release import agreement, base, chart, images, index, sbom
from dev.report import DevError, say, step
from dev.settings import REPOSITORY, Settings
from dev.shell import run
from dev.supply import binaries

_PINNED_BASE = "images/debian/Dockerfile"
_MATERIALS = ("uv.lock", "images/python-build/uv.txt", "dev/build-requirements.txt", _PINNED_BASE)
_IMAGES = "images.json"
_PUSHED = "chart.json"
_STARTED = "started.json"


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for.

    Attributes:
        arguments: of the command line.
        commit: of git.
        work: what one part tells the next, in files; no part of the release.
        base: what stands in place of images/debian.
    """

    arguments: argparse.Namespace
    commit: str
    work: Path
    base: base.Base | None = None

    @property
    def out(self) -> Path:
        """The release's folder."""
        path: Path = self.arguments.out
        return path

    def said(self, name: str) -> Mapping[str, str]:
        """What a part before told; nothing where it has not run."""
        path = self.work / name
        found: Mapping[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def tell(self, name: str, what: Mapping[str, str]) -> None:
        """Tells the parts after."""
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / name).write_text(json.dumps(what, indent=2))


def _images(job: Job) -> None:
    settings = Settings()
    address = job.arguments.buildkit or f"unix://{settings.buildkit_socket}"
    builder = images.Builder(
        [str(_program(settings, "buildkit", "buildctl")), f"--addr={address}"],
        job.arguments.version,
        job.arguments.registry,
        job.out,
        job.work,
        job.arguments.sbom_generator,
        job.base,
    )
    chosen = images.wanted(job.arguments.image or images.ALL, without_base=job.base is not None)
    images.build(builder, chosen, job.said(_IMAGES), lambda made: job.tell(_IMAGES, made))


def _chart(job: Job) -> None:
    helm = str(_program(Settings(), "helm", "helm"))
    registry: str = job.arguments.registry
    archive = chart.package(helm, job.arguments.version, registry, job.said(_IMAGES), job.out)
    if registry:
        job.tell(_PUSHED, {"digest": chart.push(helm, archive, registry, plain_http=job.arguments.plain_http)})
    say(f"{archive}: {job.said(_PUSHED).get('digest', 'not pushed')}")


def _cli(job: Job) -> None:
    job.out.mkdir(parents=True, exist_ok=True)
    krew.build_wheel(_uv(), job.out)
    krew.build(job.arguments.base_url, job.arguments.repository, list(krew.PLATFORMS), job.out)


def _sbom(job: Job) -> None:
    sbom.write(_uv(), [name for name in images.ALL if name in job.said(_IMAGES)], job.out / "sbom")


def _index(job: Job) -> None:
    started = job.said(_STARTED).get("at", _now())
    release = index.Release(
        job.arguments.version,
        job.commit,
        job.arguments.repository,
        job.arguments.registry,
        job.said(_IMAGES),
        job.said(_PUSHED).get("digest", ""),
        index.digests(job.out),
        job.said(_STARTED).get("base", ""),
    )
    materials = [name for name in _MATERIALS if not (release.base and name == _PINNED_BASE)]
    tools = {"python": platform.python_version(), "uv": run([_uv(), "--version"]).stdout.split()[1]}
    provenance = index.statement(release, index.of_files(REPOSITORY, materials), tools, started, _now())
    index.write(job.out, release, provenance)
    lacking = [name for name in images.ALL if name not in release.images]
    say(f"{job.out / index.SUMS}: {len(release.files)} files, {len(release.images)} images; nothing is signed")
    if lacking:
        say(f"not in it: the images {', '.join(lacking)}")


PARTS: Mapping[str, tuple[Callable[[Job], None], str]] = {
    "images": (_images, "the images"),
    "chart": (_chart, "the chart, with these images by digest"),
    "cli": (_cli, "wheel, krew's manifest and archives"),
    "sbom": (_sbom, "lists of Python packages"),
    "index": (_index, "release.json, provenance, SHA256SUMS"),
}


def _program(settings: Settings, name: str, program: str) -> Path:
    if binaries.lacking(settings, [name]):
        with exclusive(settings):
            return binaries.ensure(settings, [name])[program]
    return binaries.ensure(settings, [name])[program]


def _uv() -> str:
    return run([REPOSITORY / "dev" / "uv.sh"], deadline=300).stdout.strip()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.release", description="Makes a release (docs/releases.md).")
    parser.add_argument(
        "--version", required=True, help="of the release, such as 0.2.0; the repository must say the same"
    )
    parser.add_argument(
        "--repository", required=True, help="https:// URL of the repository: krew and provenance name it"
    )
    parser.add_argument(
        "--base-url", required=True, help="https:// folder that krew's archives will be downloaded from"
    )
    parser.add_argument("--registry", default="", help="HOST/PATH to push images and chart to; without: files")
    parser.add_argument("--out", type=Path, help="folder of the release (dist/VERSION)")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part alone; may be given again")
    parser.add_argument("--image", action="append", help="this image and what it stands upon; may be given again (all)")
    parser.add_argument("--base", type=Path, help="OCI layout of a Debian, in place of images/debian: no registry")
    parser.add_argument("--buildkit", default="", help="address of a buildkitd (the development cluster's)")
    parser.add_argument(
        "--sbom-generator", default="", help="image of BuildKit's scanner, NAME@sha256:…, for SBOMs in images"
    )
    parser.add_argument(
        "--plain-http", action="store_true", help="push the chart without TLS, as to a registry for tests"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Makes what the arguments name."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for option, url in (("--repository", arguments.repository), ("--base-url", arguments.base_url)):
        if not url.startswith("https://"):
            parser.error(f"{option}: {url!r} doesn't begin with https://")
    if "://" in arguments.registry or arguments.registry.endswith("/"):
        parser.error(f"--registry: {arguments.registry!r} is not HOST/PATH: no scheme, no / at the end")
    if arguments.sbom_generator and "@sha256:" not in arguments.sbom_generator:
        parser.error(f"--sbom-generator: {arguments.sbom_generator!r} names no digest (NAME@sha256:…)")
    arguments.out = (arguments.out or REPOSITORY / "dist" / arguments.version).absolute()
    if arguments.base and arguments.base.resolve().is_relative_to(arguments.out.resolve()):
        parser.error(f"--base: {arguments.base} is in the release's own folder, which is emptied")
    try:
        agreement.check_versions(arguments.version, agreement.versions())
        given = base.read(arguments.base.absolute()) if arguments.base else None
        job = Job(arguments, agreement.commit(), arguments.out.with_name(f"{arguments.out.name}.work"), given)
        _begin(job)
        for name in arguments.part or PARTS:
            function, what = PARTS[name]
            with step(f"release {arguments.version}: {what}"):
                function(job)
    except (DevError, krew.KrewError) as error:
        print(error.render() if isinstance(error, DevError) else f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _begin(job: Job) -> None:
    """Keeps what parts made before of the same commit for the same registry upon the same base, and else starts anew:
    parts of two commits are no release. Parts other than images take base and scanner as they were.

    Raises:
        DevError: something else is in the folder.
    """
    begun = job.said(_STARTED)
    what = {"commit": job.commit, "registry": job.arguments.registry}
    upon = {"base": job.base.digest if job.base else ""}
    scanned = {"scanner": job.arguments.sbom_generator}
    same = what | (upon if job.base else {})
    if "images" in (job.arguments.part or PARTS):
        same = what | upon | scanned
    if job.arguments.part and same.items() <= begun.items():
        return
    if not begun and job.out.exists() and any(job.out.iterdir()):
        raise DevError(f"{job.out} has files that no release put there", fix="name an empty folder: --out")
    for folder in (job.out, job.work):
        shutil.rmtree(folder, ignore_errors=True)
    job.out.mkdir(parents=True)
    job.tell(_STARTED, {**what, **upon, **scanned, "at": _now()})


if __name__ == "__main__":
    sys.exit(main())
