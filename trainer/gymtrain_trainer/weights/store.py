"""What the trainer offers of its weights: staged versions on disk, and which pod holds which version.

    FOLDER/NUMBER/{manifest.json, 00000.safetensors, ...}

A version appears under its number only when it is complete. One version is kept besides the one being written, so the
folder needs twice the size of the weights.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from gymtrain_api.manifest import MANIFEST_FILE, WeightManifest
from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.errors import StagingError

_FILE_NAME = re.compile(r"[\w][\w.-]*")


class WeightStore:
    """The folder of staged versions."""

    def __init__(self, folder: Path) -> None:
        """Takes over `folder`, and empties it: what an earlier process left there is nobody's."""
        self.held: Callable[[], WeightsHeld] = WeightsHeld  # the transport's answer, once there is one
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)

    def begin(self, number: int) -> Path:
        """An empty folder for version `number`; older versions but the last are removed first.

        Raises:
            StagingError: the folder can't be made.
        """
        complete = sorted((path for path in self._folder.glob("*") if path.name.isdigit()), key=lambda p: int(p.name))
        for path in complete[:-1]:
            shutil.rmtree(path, ignore_errors=True)
        partial = self._partial(number)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise StagingError(f"cannot make {partial}: {error}") from error
        return partial

    def commit(self, number: int, manifest: WeightManifest) -> None:
        """Publishes what was written to `begin`'s folder.

        Raises:
            StagingError: it can't be written.
        """
        partial = self._partial(number)
        try:
            (partial / MANIFEST_FILE).write_text(manifest.model_dump_json())
            partial.rename(self._folder / str(number))
        except OSError as error:
            raise StagingError(f"cannot publish {partial}: {error}") from error

    def drop(self, number: int) -> None:
        """Forgets a version that no pod is to hold, published or not."""
        for path in (self._partial(number), self._folder / str(number)):
            shutil.rmtree(path, ignore_errors=True)

    def find(self, number: str, name: str) -> Path | None:
        """A published file; None for anything else, whatever the strings hold."""
        if not number.isdecimal() or not _FILE_NAME.fullmatch(name):
            return None
        path = self._folder / number / name
        return path if path.is_file() else None

    def weights(self, number: int) -> list[Path]:
        """The tensor files of a published version."""
        return sorted((self._folder / str(number)).glob("*.safetensors"))

    def clear(self) -> None:
        """Frees the space."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _partial(self, number: int) -> Path:
        return self._folder / f".{number}"
