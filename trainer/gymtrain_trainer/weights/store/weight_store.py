"""What the trainer offers of its weights: staged versions on disk, and which pod holds which version.

    FOLDER/NUMBER/{00000.safetensors, ...}      the manifest of each is in memory

A version can be asked for from its beginning: the manifest names a part only when it is written, and ends only when all
are. One version is kept besides the one being written, so the folder needs twice the size of the weights.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.store.announced import AnnouncedManifest
from gymtrain_trainer.weights.store.layout import Layout

_FILE_NAME = re.compile(r"[\w][\w.-]*")


@dataclass(frozen=True)
class Draft:
    """A version that is being written."""

    folder: Path
    manifest: AnnouncedManifest
    before: Layout | None = None  # of the last complete version, whose files lie beside it


class WeightStore:
    """The folder of staged versions."""

    def __init__(self, folder: Path) -> None:
        """Takes over `folder`, and empties it: what an earlier process left there is nobody's."""
        self.held: Callable[[], WeightsHeld] = WeightsHeld  # the transport's answer, once there is one
        self._folder = folder
        self._manifests: dict[int, AnnouncedManifest] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def begin(self, number: int, version: str, expected_bytes: int = 0) -> Draft:
        """Opens version `number`; older versions but the last complete one are removed first.

        Args:
            number: of the sync.
            version: label of the sync.
            expected_bytes: of all files, as far as known: readers choose by it where they put them.

        Raises:
            StagingError: its folder can't be made.
        """
        complete = sorted(number for number, manifest in list(self._manifests.items()) if manifest.complete)
        for old in complete[:-1]:
            self.drop(old)
        folder = self._folder / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StagingError(f"cannot make {folder}: {error}") from error
        before = self._manifests[complete[-1]].layout if complete else None
        manifest = self._manifests[number] = AnnouncedManifest(version, expected_bytes)
        return Draft(folder, manifest, before)

    def drop(self, number: int) -> None:
        """Forgets a version that no pod is to hold, complete or not."""
        manifest = self._manifests.pop(number, None)
        if manifest is not None:
            manifest.break_off()
        shutil.rmtree(self._folder / str(number), ignore_errors=True)

    def manifest(self, number: str) -> AnnouncedManifest | None:
        """Of a version, complete or not."""
        return self._manifests.get(int(number)) if number.isdecimal() else None

    def find(self, number: str, name: str) -> Path | None:
        """A file of a version; None for anything else, whatever the strings hold."""
        if self.manifest(number) is None or not _FILE_NAME.fullmatch(name):
            return None
        path = self._folder / str(int(number)) / name
        return path if path.is_file() else None

    def weights(self, number: int) -> list[Path]:
        """The tensor files of a version."""
        return sorted((self._folder / str(number)).glob("*.safetensors"))

    def clear(self) -> None:
        """Frees the space."""
        for number in list(self._manifests):
            self.drop(number)
        shutil.rmtree(self._folder, ignore_errors=True)
