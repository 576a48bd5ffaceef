"""The note on disk that says which weights this pod holds, for the readiness probe.

vLLM answers the same question at /weight_info, but 0.25 does not, and none does while its engine is busy.
"""

import os
from pathlib import Path

from gymtrain_api.manifest import HELD_VERSION_FILE
from gymtrain_vllm import environment


def note() -> Path:
    """Where it is."""
    return environment.scratch() / HELD_VERSION_FILE


def remember(version: str) -> None:
    """Writes the note. A pod without a scratch folder has none, and its probe asks vLLM alone."""
    target = note()
    if target.parent.is_dir():
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_text(version)
        fresh.replace(target)


def forget() -> None:
    """Removes the note: the scratch folder outlives a restart of the container, the weights don't."""
    note().unlink(missing_ok=True)
