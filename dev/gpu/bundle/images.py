"""Images of the local cluster as one archive: each layer once, compressed."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from dev.cluster import containerd
from dev.report import DevError, say
from dev.settings import Settings
from dev.shell import run

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_INDEX = "application/vnd.oci.image.index.v1+json"
ZSTD = ("--quiet", "-9", "--long=27", "-T0")
_DEADLINE = 1800


def write(settings: Settings, references: Sequence[str], archive: Path, compressed: Path) -> None:
    """The images of the local containerd as an OCI archive. `compressed` keeps the layers for the next time."""
    compressed.mkdir(parents=True, exist_ok=True)
    blobs: dict[str, bytes | Path] = {}
    entries: list[dict[str, Any]] = []
    digests = _digests(settings)
    for reference in references:
        if reference not in digests:
            raise DevError(f"{reference} isn't in the cluster", fix="dev/run images NAME")
        manifest: dict[str, Any] = json.loads(_blob(settings, digests[reference]).read_text())
        if "layers" not in manifest:
            raise DevError(f"{reference} is an index of several images", fix="dev/run images NAME builds one")
        blobs[manifest["config"]["digest"]] = _blob(settings, manifest["config"]["digest"])
        manifest["layers"] = [_compress(settings, layer, compressed, blobs) for layer in manifest["layers"]]
        text = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        blobs[digest] = text
        entries.append(
            {
                "mediaType": manifest["mediaType"],
                "digest": digest,
                "size": len(text),
                "annotations": {"io.containerd.image.name": reference},
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        )
    keep = {path.name for path in blobs.values() if isinstance(path, Path)}
    for stale in compressed.iterdir():
        if stale.name not in keep:
            stale.unlink()
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries}
    with tarfile.open(archive, "w") as output:
        _add(output, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(output, "index.json", json.dumps(index).encode())
        for digest, blob in blobs.items():
            _add(output, f"blobs/{digest.replace(':', '/')}", blob)


def _compress(
    settings: Settings, layer: dict[str, Any], folder: Path, blobs: dict[str, bytes | Path]
) -> dict[str, Any]:
    """The layer's description once it is compressed."""
    if layer["mediaType"] != _LAYER:
        raise DevError(f"layer {layer['digest']} is {layer['mediaType']}, not {_LAYER}", fix="build the image again")
    file = folder / f"{layer['digest'].removeprefix('sha256:')}.zst"
    if not file.exists():
        say(f"compressing a layer of {layer['size'] / 1e6:.0f} MB …")
        temporary = file.with_suffix(".tmp")
        run(["nice", "zstd", *ZSTD, "-o", temporary, _blob(settings, layer["digest"])], deadline=_DEADLINE)
        temporary.rename(file)
    with file.open("rb") as data:
        digest = f"sha256:{hashlib.file_digest(data, 'sha256').hexdigest()}"
    blobs[digest] = file
    return {"mediaType": f"{_LAYER}+zstd", "digest": digest, "size": file.stat().st_size}


def _digests(settings: Settings) -> dict[str, str]:
    lines = containerd.ctr(settings, "images", "list").splitlines()[1:]
    return {words[0]: words[2] for words in map(str.split, lines) if len(words) > 2}


def _blob(settings: Settings, digest: str) -> Path:
    return settings.containerd_root / "io.containerd.content.v1.content" / "blobs" / digest.replace(":", "/")


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, BytesIO(content))
        return
    entry.size = content.stat().st_size
    with content.open("rb") as data:
        archive.addfile(entry, data)
