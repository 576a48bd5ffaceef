"""Files of weights that nobody needs any more, for the next version to be written into: the trainer's and the pods'.

Memory that was written once takes new bytes several times as fast as fresh memory, and to give back that of billions
of parameters takes a second, for which a sync would wait. Syncs are alike, so files of the sizes that are needed are
there, and all are taken.
"""

import contextlib
import os
import shutil
import stat
import uuid
from pathlib import Path

_NAME = "gymtrain-spare"


class SpareFiles:
    """The files of one place. Several processes may share it: a rename decides who gets a file."""

    def __init__(self, place: Path, *, fixed: bool = False) -> None:
        """Files that come later are seen by another object.

        Args:
            place: folder in which the versions' folders are.
            fixed: files keep their size. A GPU that reads a file by itself goes on to read what was cut off.
        """
        self._fixed = fixed
        self._folder = place / _NAME
        self._known: dict[int, list[Path]] | None = None  # by size

    @property
    def bytes(self) -> int:
        """That they hold."""
        return sum(size * len(files) for size, files in self._files().items())

    def gather(self, folder: Path) -> None:
        """Takes the files of a version's folder, which nobody may read any more. Those of hidden names, which are not
        whole, and those that other folders have links to stay."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            for file in folder.glob("[!.]*"):
                found = file.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size:
                    file.rename(self._folder / f"{found.st_size}-{uuid.uuid4().hex}")

    def take(self, target: Path, size: int) -> bool:
        """Whether there was one to become `target`: of the same size if possible, else of any, so that no more memory
        is taken. Its bytes are anything. Where sizes are fixed, one of another size is given back instead.

        Raises:
            OSError: it can't get that size.
        """
        known = self._files()
        while known:
            found = size if size in known else max(known)
            file = known[found].pop()
            if not known[found]:
                del known[found]
            try:
                if found != size and self._fixed:
                    file.unlink()
                    return False
                file.rename(target)
            except FileNotFoundError:  # another worker was first
                continue
            if found != size:
                os.truncate(target, size)
            return True
        return False

    def clear(self) -> None:
        """Gives their memory back."""
        self._known = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _files(self) -> dict[int, list[Path]]:
        if self._known is None:
            self._known = {}
            for file in self._folder.glob("*-*"):
                self._known.setdefault(int(file.name.partition("-")[0]), []).append(file)
        return self._known
