"""The folder of the final model: it is whole, or not there under its name.

Whoever waits for the model, or finds it months later, can't tell a half-written one by its files.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = "model"
DRAFT = f".{_NAME}"


def model_folder(run_folder: Path) -> Path:
    """Of the final model, in the run's folder."""
    return run_folder / _NAME


@contextmanager
def drafted_model(run_folder: Path, *, leads: bool) -> Iterator[Path]:
    """All ranks: where to write the final model. After the block rank 0 gives it its name, in place of an earlier one.

    Args:
        run_folder: where the model's folder is.
        leads: this is rank 0; the others only learn the name.
    """
    draft = run_folder / DRAFT
    if not leads:
        yield draft
        return
    shutil.rmtree(draft, ignore_errors=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # the next attempt needs the room
        raise
    for path in draft.rglob("*"):
        if path.is_file():
            _flush(path)
    folder, earlier = model_folder(run_folder), run_folder / f"{DRAFT}-earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    if folder.exists():
        folder.rename(earlier)  # a folder that isn't empty can't be replaced
    draft.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def _flush(path: Path) -> None:
    """A file of that name has its content also after the node's end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
