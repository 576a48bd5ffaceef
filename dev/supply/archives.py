"""Writing a container image as an OCI archive, which containerd imports: no registry, no build tool.

Layers stay uncompressed: they never cross a network, and gzip would be most of the time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What the image's process gets."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def write_image(target: Path, name: str, layer: Path, config: ImageConfig) -> None:
    """One layer (a tar) and its configuration, as an archive under a full image name."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    settings = {"Entrypoint": config.entrypoint, "Cmd": config.command, "Env": config.env, "User": config.user}
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value} | {"Labels": config.labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "gymtrain dev/", "created": "1970-01-01T00:00:00Z"}],
    }
    config_blob = json.dumps(image).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _descriptor(f"{_OCI}.config.v1+json", config_blob),
        "layers": [
            {
                "mediaType": f"{_OCI}.layer.v1.tar",
                "digest": f"sha256:{digest}",
                "size": layer.stat().st_size,
            }
        ],
    }
    manifest_blob = json.dumps(manifest).encode()
    entry = _descriptor(f"{_OCI}.manifest.v1+json", manifest_blob) | {
        "annotations": {"io.containerd.image.name": name},
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(temporary, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps(index).encode())
        for blob in (config_blob, manifest_blob):
            _add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        archive.add(layer, f"blobs/sha256/{digest}")
    temporary.replace(target)


def write_program_layer(target: Path, programs: Mapping[str, Path]) -> None:
    """A layer that holds nothing but programs, at absolute paths."""
    with tarfile.open(target, "w") as archive:
        for inside, outside in programs.items():
            info = archive.gettarinfo(str(outside.resolve()), inside.lstrip("/"))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            info.mode = 0o755
            with outside.open("rb") as file:
                archive.addfile(info, file)


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
