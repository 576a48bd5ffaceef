"""What a build needs of this machine to reach a package index, and must not keep: passed as BuildKit secrets.

A Dockerfile mounts them with `required=false`, so that it builds unchanged where neither exists.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@contextmanager
def build_secrets() -> Generator[dict[str, Path]]:
    """`ca`: the CA bundle that SSL_CERT_FILE names. `index`: the package index's URL, when one is set."""
    secrets: dict[str, Path] = {}
    bundle = os.environ.get("SSL_CERT_FILE", "")
    if bundle and Path(bundle).is_file():
        secrets["ca"] = Path(bundle)
    with TemporaryDirectory(prefix="gymtrain-build-") as folder:
        if index := next((value for name in _INDEX_VARIABLES if (value := os.environ.get(name))), ""):
            secrets["index"] = Path(folder) / "index"
            secrets["index"].write_text(index)
        yield secrets
