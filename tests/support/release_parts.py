"""What tests make a release of: addresses, digests of its images, and OCI layouts."""

import hashlib
import json
from pathlib import Path
from typing import Any

from dev.release import images

ADDRESSES = ["--repository", "https://example.com/gymtrain", "--base-url", "https://downloads.example.com/v0"]
DIGESTS = {name: f"sha256:{number:064x}" for number, name in enumerate(["debian", "python-build", *images.ALL])}


def blob(folder: Path, content: bytes) -> str:
    """Writes it where a layout has it."""
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return f"sha256:{digest}"


def manifest(folder: Path, *, architecture: str = "amd64", command: str = "bash") -> dict[str, Any]:
    """The entry of an image of one layer."""
    config = {"architecture": architecture, "os": "linux", "config": {"Cmd": [command]}}
    told = {"config": {"digest": blob(folder, json.dumps(config).encode())}, "layers": [{"digest": blob(folder, b"x")}]}
    return {"digest": blob(folder, json.dumps(told).encode())}


def listing(folder: Path, entries: list[dict[str, Any]]) -> Path:
    """A folder that lists these."""
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"manifests": entries}))
    return folder


def layout(folder: Path, **more: str) -> Path:
    """A folder with one image."""
    return listing(folder, [manifest(folder, **more)])


def attested(folder: Path) -> Path:
    """A folder as BuildKit writes it: an index of the image and of what is attested of it."""
    statement_of = {"digest": "sha256:0", "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    both = {"manifests": [manifest(folder), statement_of]}
    return listing(folder, [{"digest": blob(folder, json.dumps(both).encode())}])
