"""What a release consists of: every file and image by digest, and a statement of what they were made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
RELEASE = "release.json"
PROVENANCE = "provenance.intoto.json"
_OWN = {SUMS, RELEASE, PROVENANCE}


@dataclass(frozen=True, slots=True)
class Release:
    """What was made.

    Attributes:
        version: without a v.
        commit: of git.
        repository: URL that the commit is found at.
        registry: HOST/PATH of images and chart; empty where they are files.
        images: digest by name.
        chart: digest of the pushed chart; empty where it is a file.
        files: SHA-256 by path inside the release's folder.
        base: digest of the image that stands in place of images/debian; empty where that does.
    """

    version: str
    commit: str
    repository: str
    registry: str = ""
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    chart: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    base: str = ""


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that is handed on; of an image's layout index.json alone, which names the rest by digest."""
    found: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name in _OWN or (name.startswith("images/") and not name.endswith("/index.json")):
            continue
        with path.open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def of_files(root: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of these files, by their path under `root`."""
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names}


def statement(
    release: Release, materials: Mapping[str, str], tools: Mapping[str, str], started: str, ended: str
) -> dict[str, Any]:
    """An in-toto Statement v1 with a SLSA v1 provenance: who holds this file knows what was made from what.

    It is signed by nobody: it proves nothing until it is.

    Args:
        release: what was made.
        materials: SHA-256 of files of the commit that fix what else goes in, by path.
        tools: versions of the programs that made it.
        started: RFC 3339.
        ended: RFC 3339.
    """
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(release.files.items())]
    prefix = f"{release.registry}/gymtrain" if release.registry else "gymtrain"
    subjects += [
        {"name": f"{prefix}/{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}
        for name, digest in sorted(release.images.items())
    ]
    if release.chart:
        digest = {"sha256": release.chart.removeprefix("sha256:")}
        subjects.append({"name": f"{release.registry}/charts/gymtrain", "digest": digest})
    source = {"uri": f"git+{release.repository}", "digest": {"gitCommit": release.commit}}
    parameters = {"version": release.version, "registry": release.registry}
    bases: list[dict[str, Any]] = []
    if release.base:
        parameters["base"] = release.base
        digest = {"sha256": release.base.removeprefix("sha256:")}
        bases.append({"name": "base image, in place of images/debian", "digest": digest})
    inputs = [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(materials.items())]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{release.repository}#make-release/v1",
                "externalParameters": parameters,
                "resolvedDependencies": [source, *bases, *inputs],
            },
            "runDetails": {
                "builder": {"id": f"{release.repository}#make-release", "version": dict(tools)},
                "metadata": {"startedOn": started, "finishedOn": ended},
            },
        },
    }


def write(folder: Path, release: Release, provenance: Mapping[str, Any]) -> None:
    """Writes what names all else, and last the sums, which name that too."""
    (folder / RELEASE).write_text(json.dumps(asdict(release), indent=2) + "\n")
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")
    sums = dict(release.files)
    for name in (RELEASE, PROVENANCE):
        sums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
