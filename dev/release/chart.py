"""The chart of a release: its images by digest, packaged, and pushed as an OCI artefact."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dev.release.images import OF_THE_CHART
from dev.report import DevError
from dev.settings import KUBERNETES_VERSION, NAME, REPOSITORY
from dev.shell import run

CHART = REPOSITORY / "charts" / NAME
_KEYS = {"inference-gpu": "inferenceGpu", "trainer-gpu": "trainerGpu"}
"""Values whose key isn't the image's name."""
_SECONDS = 120
_DIGEST = re.compile(r"^Digest:\s*(sha256:[0-9a-f]{64})$", re.MULTILINE)


def values_by_digest(text: str, registry: str, digests: Mapping[str, str]) -> str:
    """The chart's values with the release's images in place of names without a tag; comments stay.

    Args:
        text: of values.yaml.
        registry: HOST/PATH that the images are in; empty: whoever installs the chart says it (`imageRegistry`).
        digests: of the images, by name; those for GPUs may be missing.

    Raises:
        DevError: an image of the chart is missing, or the text isn't of the form that this knows.
    """
    if missing := [name for name in OF_THE_CHART if name not in digests]:
        raise DevError(f"the chart needs the digests of {', '.join(missing)}", fix="build them: --image NAME")
    changes: dict[tuple[str, ...], str] = {("image", "repository"): f"{NAME}/operator@{digests['operator']}"}
    for name in (*OF_THE_CHART, *_KEYS):
        if name != "operator" and name in digests:
            changes["images", _KEYS.get(name, name)] = f"{NAME}/{name}@{digests[name]}"
    if registry:
        changes["imageRegistry",] = f"{registry}/"
    wanted = copy.deepcopy(yaml.safe_load(text))
    for path, value in changes.items():
        place: Any = wanted
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        text = _replaced(text, path, value)
    if yaml.safe_load(text) != wanted:
        raise DevError(
            "charts/gymtrain/values.yaml: its images can't be replaced line by line", fix="dev/release/chart.py"
        )
    return text


def _replaced(text: str, path: tuple[str, ...], value: str) -> str:
    """The text with the value of `key: value` or, one level down, `block: / key: value` replaced."""
    *block, key = path
    start = re.search(rf"^{block[0]}:\n", text, re.MULTILINE) if block else None
    begin = start.end() if start else 0
    line = re.compile(rf"^({'  ' * len(block)}{key}: )(?:\"[^\"\n]*\"|\S+)", re.MULTILINE)
    return text[:begin] + line.sub(lambda match: f"{match[1]}{value}", text[begin:], count=1)


def package(helm: str, version: str, registry: str, digests: Mapping[str, str], out: Path) -> Path:
    """Writes the chart's archive.

    Raises:
        DevError: as `values_by_digest`, or helm refuses the chart.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / NAME
        shutil.copytree(CHART, folder)
        values = folder / "values.yaml"
        values.write_text(values_by_digest(values.read_text(), registry, digests))
        checks = ["--set", "imageRegistry=registry.example.com/"] if not registry else []
        run([helm, "template", NAME, str(folder), "--kube-version", KUBERNETES_VERSION, *checks], deadline=_SECONDS)
        argv = [helm, "package", str(folder), "--version", version, "--app-version", version, "--destination", str(out)]
        run(argv, deadline=_SECONDS)
    return out / f"{NAME}-{version}.tgz"


def push(helm: str, archive: Path, registry: str, *, plain_http: bool = False) -> str:
    """Pushes the archive to REGISTRY/charts, and returns its digest there.

    Raises:
        DevError: helm fails, or tells no digest.
    """
    argv = [helm, "push", str(archive), f"oci://{registry}/charts", *(["--plain-http"] if plain_http else [])]
    done = run(argv, deadline=_SECONDS)
    found = _DIGEST.search(done.stdout) or _DIGEST.search(done.stderr)
    if found is None:
        raise DevError(f"helm pushed {archive.name}, but told no digest of it", fix="see `helm push` of this version")
    return found[1]
