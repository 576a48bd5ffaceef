"""Writing files that daemons read."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file as a whole, and only if it differs: kube-proxy ends itself when its configuration is touched."""
    try:
        if path.read_text() == text:
            return
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.touch(mode=mode)
    temporary.write_text(text)
    temporary.replace(path)
