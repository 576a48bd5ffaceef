"""A checkpoint volume that is full or broken: found behind any error that it causes, and reported so users can act.

The attempt ends with StorageError; the operator's next attempt resumes from the last whole checkpoint, in which a write
that was cut off is passed over (folder.py).
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymtrain_trainer.errors import StorageError, TrainerError

_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
# torch and safetensors write with code of their own, and wrap what the system said.
_TEXTS = (
    "no space left on device",
    "disk quota exceeded",
    "read-only file system",
    "pytorchstreamwriter",
    "enforce fail at inline_container",
)
_NEARLY_FULL = 16 << 20  # bytes


def trouble_of(error: BaseException) -> str | None:
    """What an error says about a volume; None if it is of another kind."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _TROUBLE:
            return f"{seen.strerror}{f' ({seen.filename})' if seen.filename else ''}"
        if any(text in str(seen).lower() for text in _TEXTS):
            return " ".join(str(seen).split())[:300]
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def explained(folder: Path, volume: str) -> Iterator[None]:
    """Around everything that writes to `folder`, which is on `volume` (as the user knows it).

    Raises:
        StorageError: in place of an error that the volume caused.
    """
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        trouble = trouble_of(error)
        if trouble is None:
            raise
        raise StorageError(
            f"cannot write to the checkpoint volume ({volume}): {trouble}; {_free(folder)}. Make room, or give "
            "spec.trainer.checkpoint a larger volume; the next attempt resumes from the last whole checkpoint"
        ) from error


def _free(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} is not readable: {error.strerror}"
    return f"{folder} has {free / 1e6:.1f} MB free{', which is full' if free < _NEARLY_FULL else ''}"
