"""Rows of the indexed datasets by position: read from disk one at a time, with the agent that each goes to."""

import bisect
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gymtrain_api import wiring
from gymtrain_api.wiring import DataFile, DataIndex
from gymtrain_trainer.data.order import DrawOrder, in_proportion
from gymtrain_trainer.errors import DataError

# Where datasets are, from the folder of the index: as they are mounted, and where they were fetched to.
_BESIDE = tuple(f"../{Path(path).name}" for path in (wiring.SOURCES_DIR, wiring.FETCHED_DIR))
_OFFSET = struct.Struct("<2Q")


def read_index(path: Path) -> DataIndex:
    """`index.json`, its file names made absolute (relative ones count from the index's folder).

    The environment's image wrote it: a file elsewhere, such as a token, would be read and sent to its servers.

    Raises:
        DataError: it is missing, malformed, has no rows, or names a file that holds no dataset.
    """
    try:
        index = DataIndex.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f"cannot read the data index {path}: {error}") from error
    absolute = DataIndex(
        train=[_absolute(file, path.parent) for file in index.train],
        validation=[_absolute(file, path.parent) for file in index.validation],
    )
    empty = [file.file for file in (*absolute.train, *absolute.validation) if file.rows < 1]
    if empty or not (absolute.train or absolute.validation):
        raise DataError(f"no rows in {', '.join(empty) or path}")
    return absolute


def _absolute(file: DataFile, folder: Path) -> DataFile:
    paths = {"file": folder / file.file, "offsets_file": folder / file.offsets_file}
    of_datasets = [(folder / path).resolve() for path in (".", *_BESIDE)]
    for path in paths.values():
        if not any(path.resolve().is_relative_to(root) for root in of_datasets):
            raise DataError(f"the data index names {path}, which is in none of {', '.join(map(str, of_datasets))}")
    return file.model_copy(update={key: str(path) for key, path in paths.items()})


def data_digest(index: DataIndex, seed: int) -> str:
    """What a place in the draw order is about: the datasets by their rows' lengths, their weights, and the seed. Two
    runs with the same digest draw the same rows at the same positions.

    Raises:
        DataError: an offsets file is unreadable.
    """
    digest = hashlib.blake2b(f"{seed}".encode(), digest_size=16)
    for info in index.train:
        digest.update(f"/{info.weight}/{info.rows}/".encode())
        try:
            with Path(info.offsets_file).open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            raise DataError(f"cannot read {info.offsets_file}: {error.strerror}") from error
    return digest.hexdigest()


class RowFile:
    """One JSONL file with its offsets; safe to read from several threads."""

    def __init__(self, info: DataFile) -> None:
        """
        Raises:
            DataError: a file is missing, or the offsets are not those of `rows` rows.
        """
        self._info = info
        try:
            self._rows = os.open(info.file, os.O_RDONLY)
            self._offsets = os.open(info.offsets_file, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"cannot open {error.filename}: {error.strerror}") from error
        size = os.fstat(self._offsets).st_size
        if size != (info.rows + 1) * 8:
            raise DataError(f"{info.offsets_file} has {size} bytes, but {info.rows} rows need {(info.rows + 1) * 8}")

    def row(self, number: int) -> dict[str, Any]:
        """Row `number`, from 0.

        Raises:
            DataError: the bytes there are no JSON object: the file changed since it was indexed.
        """
        start, end = _OFFSET.unpack(os.pread(self._offsets, _OFFSET.size, number * 8))
        try:
            row = json.loads(os.pread(self._rows, end - start, start))
        except ValueError as error:
            raise DataError(f"{self._info.file}: row {number} changed since it was indexed: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self._info.file}: row {number} isn't a JSON object")
        return row

    def close(self) -> None:
        """Closes both files."""
        os.close(self._rows)
        os.close(self._offsets)


@dataclass(frozen=True)
class Task:
    """What one rollout group works on, or the rollouts of an evaluation."""

    position: int  # in the draw order, or its number in the evaluation
    agent: str  # agent server's name
    url: str  # of the agent, without a path
    row: dict[str, Any]  # the dataset's row as it is


class Tasks:
    """The run's tasks by position."""

    def __init__(self, index: DataIndex, agents: Mapping[str, str], seed: int) -> None:
        """`agents`: URL by agent server.

        Raises:
            DataError: a file is unreadable, or rows name an agent that the run doesn't have.
        """
        self._infos = index.train
        self._files = _opened(index.train, agents)
        self._agents = dict(agents)
        self._order = DrawOrder([f.rows for f in index.train], [f.weight for f in index.train], seed)

    @property
    def rows(self) -> int:
        """Rows of all datasets together; without any, no task can be asked for."""
        return sum(file.rows for file in self._infos)

    def at(self, position: int) -> Task:
        """The task at a position, from 0.

        Raises:
            DataError: the row is unreadable or names no agent.
        """
        draw = self._order.at(position)
        return _task(position, self._infos[draw.dataset], self._files[draw.dataset], draw.row, self._agents)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


class ValidationTasks:
    """The tasks of an evaluation, by number from 0: the first rows of each dataset, always the same."""

    def __init__(self, index: DataIndex, agents: Mapping[str, str], most: int | None = None) -> None:
        """`agents`: URL by agent server; `most`: tasks in all.

        Raises:
            DataError: a file is unreadable, or rows name an agent that the run doesn't have.
        """
        self._infos = index.validation
        self._files = _opened(index.validation, agents)
        self._agents = dict(agents)
        taken = in_proportion([file.rows for file in index.validation], most)
        self._ends = list(itertools.accumulate(taken))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, number: int) -> Task:
        """The task of that number.

        Raises:
            DataError: the row is unreadable or names no agent.
        """
        dataset = bisect.bisect_right(self._ends, number)
        row = number - (self._ends[dataset - 1] if dataset else 0)
        return _task(number, self._infos[dataset], self._files[dataset], row, self._agents)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


def _opened(files: Sequence[DataFile], agents: Mapping[str, str]) -> list[RowFile]:
    unknown = {name for file in files for name in (*file.agents, file.default_agent) if name} - set(agents)
    if unknown:
        raise DataError(f"the data names agents {sorted(unknown)}, the run has {sorted(agents)}")
    return [RowFile(file) for file in files]


def _task(position: int, info: DataFile, file: RowFile, number: int, agents: Mapping[str, str]) -> Task:
    row = file.row(number)
    reference = row.get("agent_ref")
    agent = reference.get("name") if isinstance(reference, dict) else None
    agent = agent or info.default_agent
    if not isinstance(agent, str) or agent not in agents:
        raise DataError(f"{info.file}: row {number} goes to agent {agent!r}, the run has {sorted(agents)}")
    return Task(position, agent, agents[agent], row)
