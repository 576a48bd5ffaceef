"""Files that later versions name again: what the trainer doesn't change is not fetched again.

    TMP/gymtrain-kept-RUN/NAME          the verified file
    TMP/gymtrain-kept-RUN/NAME.parts    what was verified: one line of the manifest for each part

A version's folder holds links to them. They are loaded with every version all the same: vLLM fuses tensors into
layers, which it can only load whole. They lie in the temporary folder rather than in memory, as they stay.
"""

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from gymtrain_api.manifest import WeightPart
from gymtrain_api.weight_version import WeightVersion
from gymtrain_vllm.errors import FetchError

_PREFIX = "gymtrain-kept-"
_PARTS = ".parts"


class KeptFiles:
    """What this pod holds of one attempt, in which a name never means two files. One fetch at a time."""

    def __init__(self, version: str, base: Path | None = None, *, spare: int = 0) -> None:
        """
        Args:
            version: run:attempt:number.
            base: folder to work in; None: the temporary folder.
            spare: bytes that have to stay free for a whole version.
        """
        self._folder = (base or Path(tempfile.gettempdir())) / _folder_name(version)
        self._spare = spare
        self._known: dict[str, dict[int, WeightPart]] = {}

    def lend(self, part: WeightPart, folder: Path) -> bool:
        """Whether the part's file is held; then `folder` has a link to it.

        Raises:
            FetchError: the file is held, but with another content; everything is forgotten.
            OSError: the link can't be made.
        """
        parts = self._parts(part.name)
        if parts is None:
            return False
        if parts.get(part.offset) != part:
            self.forget_all_but(())
            raise FetchError(f"{part.name} is another file than the one of that name that this pod holds")
        link = folder / part.name
        if not link.exists():
            link.unlink(missing_ok=True)  # one that leads nowhere
            link.symlink_to(self._folder / part.name)
        return True

    def keep(self, file: Path, parts: Sequence[WeightPart]) -> None:
        """Holds a verified file from now on, where there is room: else it is fetched again."""
        target = self._folder / file.name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._folder).free < file.stat().st_size + self._spare:
                return
            fresh = target.with_name(f".{file.name}")
            shutil.copyfile(file, fresh)
            fresh.replace(target)
            # Last: a file without this one is not held.
            target.with_name(file.name + _PARTS).write_bytes(b"".join(part.line() for part in parts))
        except OSError:
            self._forget(file.name)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Removes what a version doesn't name."""
        for file in list(self._folder.glob(f"*{_PARTS}")):
            if (name := file.name.removesuffix(_PARTS)) not in names:
                self._forget(name)

    def _parts(self, name: str) -> dict[int, WeightPart] | None:
        if name not in self._known:
            try:
                lines = (self._folder / (name + _PARTS)).read_bytes().splitlines()
                parts = [WeightPart.model_validate_json(line) for line in lines]
                whole = sum(part.bytes for part in parts) == (self._folder / name).stat().st_size
            except (OSError, ValueError):
                return None
            if not whole:
                return None
            self._known[name] = {part.offset: part for part in parts}
        return self._known[name]

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / (name + _PARTS)).unlink(missing_ok=True)
            (self._folder / name).unlink(missing_ok=True)


def sweep(base: Path | None = None, *, but: str = "") -> None:
    """Removes what is held of all attempts, or of all but that of one version: a server that was started again fetches
    everything, as nobody knows what became of its files meanwhile."""
    for folder in (base or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        if not but or folder.name != _folder_name(but):
            shutil.rmtree(folder, ignore_errors=True)


def _folder_name(version: str) -> str:
    known = WeightVersion.parse(version)
    attempt = f"{known.run}:{known.attempt}" if known else version
    return _PREFIX + hashlib.sha256(attempt.encode()).hexdigest()[:16]
