"""The files of a run's records, one a step: `records/step-00000012.parquet` has the samples of step 12, and the file of
that name in `rollouts` what was said in its rollouts.

A file is there as a whole or not at all. Drafts begin with a dot, which readers of folders pass over.
"""

import os
import re
from pathlib import Path

from gymtrain_api.spec import Records
from gymtrain_trainer.monitoring.step_tables import StepTable, write_jsonl, write_parquet

_FILE = re.compile(r"^[a-z]+-(\d+)\.(?:parquet|jsonl)$")
_DRAFT = re.compile(r"^\.[a-z]+-.*\.new$")


class StepFiles:
    """Writes those of a folder, and bounds the space that they take. Used by one thread at a time."""

    def __init__(self, folder: Path, settings: Records) -> None:
        """`folder`: made with the first file."""
        self._folder = folder
        self._settings = settings
        self._sizes: dict[Path, int] = {}  # by file, oldest step first

    def begin(self, step: int) -> None:
        """Removes what was written of steps after `step`, from which training goes on, and drafts that were cut off."""
        found: list[tuple[int, Path]] = []
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            match = _FILE.match(path.name)
            if _DRAFT.match(path.name) or (match and int(match[1]) > step):
                path.unlink()
            elif match:
                found.append((int(match[1]), path))
        self._sizes = {path: path.stat().st_size for _, path in sorted(found)}

    def write(self, table: StepTable) -> int:
        """Writes the file of a step. Returns how many of the oldest were removed for it; it stays itself, of any size.

        Raises:
            OSError: the volume doesn't take it; nothing is left of it.
        """
        parquet = self._settings.format == "Parquet"
        path = self._folder / f"{table.kind}-{table.step:08d}.{'parquet' if parquet else 'jsonl'}"
        draft = self._folder / f".{path.name}.new"
        self._folder.mkdir(exist_ok=True)
        try:
            with draft.open("wb") as file:
                (write_parquet if parquet else write_jsonl)(table, file)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._sizes[path] = path.stat().st_size
        removed = 0
        while sum(self._sizes.values()) > self._settings.max_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            oldest.unlink(missing_ok=True)
            del self._sizes[oldest]
            removed += 1
        return removed
