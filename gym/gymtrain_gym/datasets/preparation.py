"""Preparing and indexing the datasets of a run.

| source | where its rows end up |
|---|---|
| pvc:// | stay where they are, /gymtrain/sources/N/PATH |
| volume:// | likewise |
| hf://, s3://, gs://, az:// | stay where they were fetched to, /gymtrain/fetched |
| configmap:// | copied: an edit of the ConfigMap would shift the rows under the index |
| gym:// | copied: the trainer's main container has another image |
| reasoningGym | generated |

`fromGym` stands for gym:// files, or for one that `gymtrain_gym.prepare` made; `listed` says which.
"""

import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gymtrain_api.sources import (
    ConfigMapKey,
    GymPath,
    HubDataset,
    StoredObject,
    VolumeClaim,
    VolumePath,
    parse_data_source,
)
from gymtrain_api.spec import Data, Dataset, ValidationDataset
from gymtrain_api.wiring import DATA_DIR, FETCHED_DIR, SOURCES_DIR, DataFile, DataIndex
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.datasets import generated
from gymtrain_gym.datasets.listed import Entry, Listed, entries
from gymtrain_gym.datasets.rows import AgentDirectory, Policy, RowReader, Schema, warn_of_policy
from gymtrain_gym.errors import DatasetError
from gymtrain_gym.server import workspace

CHECKED_GENERATED_ROWS = 64
MAX_ROW_BYTES = 64 * 2**20
MAX_PROBLEMS = 20
BUFFER_BYTES = 2**20
PREPARED = "prepared"  # folder of the volume for what is fetched
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Folders:
    """Where sources are mounted, where others were fetched to, and where the result goes."""

    sources: Path = Path(SOURCES_DIR)
    data: Path = Path(DATA_DIR)
    fetched: Path = Path(FETCHED_DIR)


@dataclass
class FileIndex:
    """What one pass over a file found."""

    rows: int = 0
    agents: Counter[str] = field(default_factory=Counter)  # rows by agent
    problems: list[tuple[int, str]] = field(default_factory=list)  # (line, message), the first MAX_PROBLEMS
    problem_count: int = 0

    def add_problem(self, line: int, message: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append((line, message))


def prepare(
    data: Data,
    agents: AgentDirectory,
    listed: Sequence[Listed],
    folders: Folders,
    findings: Findings,
    schema: Schema | None,
    sample: bool,
    policy: Policy | None = None,
) -> DataIndex:
    """Makes every dataset readable by row and returns the index; `findings` say what can't be used.

    Args:
        data: spec.data.
        agents: the agents that rows can name.
        listed: the datasets that the Gym config lists.
        folders: where to read and write.
        findings: what is wrong is added here.
        schema: check of each row's request; None trusts the rows (preflight has seen them).
        sample: generate only the first rows of reasoningGym sets, enough to check them.
        policy: what the rows are compared with, for warnings; None gives none.
    """
    folders.data.mkdir(parents=True, exist_ok=True)
    examples = data.prepare is not None and data.prepare.mode == "example_validation"
    prepared = folders.fetched / PREPARED if data.prepare else None

    def files(datasets: Sequence[ValidationDataset], use: Literal["train", "validation"]) -> Iterator[DataFile]:
        for entry in entries(datasets, f"spec.data.{use}", "example" if examples else use, listed, findings, prepared):
            try:
                yield _prepare_one(entry, agents, folders, findings, schema, sample, policy)
            except DatasetError as error:
                dataset = entry.dataset
                place = "reasoningGym" if dataset.reasoning_gym else "source" if dataset.source else "fromGym"
                findings.add(f"{entry.where}.{place}", f"{dataset.source}: {error}" if dataset.source else str(error))

    return DataIndex(
        train=list(files(data.train, "train")), validation=list(files(data.validation or (), "validation"))
    )


def write_index(index: DataIndex, folders: Folders) -> Path:
    """Writes index.json, complete or not at all."""
    file = folders.data / "index.json"
    partial = file.with_name("index.json.partial")
    partial.write_text(index.model_dump_json(indent=1))
    os.replace(partial, file)
    return file


def index_rows(file: Path, offsets_file: Path, agent_of: Callable[[bytes, int], str]) -> FileIndex:
    """Writes the byte offsets of all rows and the end of the file to `offsets_file`, in one pass with constant memory.

    Empty lines are no rows, and a byte order mark is part of none. A row reaches from its offset to the next one. The
    offsets appear complete or not at all.

    Args:
        file: the JSONL file.
        offsets_file: (rows + 1) little-endian uint64.
        agent_of: the agent of a row, from its bytes and its line; raises DatasetError for a row that can't be used.

    Raises:
        DatasetError: the file can't be read, or is no JSONL at all.
    """
    found = FileIndex()
    partial = offsets_file.with_name(offsets_file.name + ".partial")
    try:
        with file.open("rb", buffering=BUFFER_BYTES) as source, partial.open("wb", buffering=BUFFER_BYTES) as offsets:
            position = 0
            number = 0
            while line := source.readline(MAX_ROW_BYTES + 1):
                number += 1
                if number == 1:
                    _check_format(line)
                    if line.startswith(BYTE_ORDER_MARK):  # Windows programs put it before UTF-8; no row begins with it
                        line = line[len(BYTE_ORDER_MARK) :]
                        position = len(BYTE_ORDER_MARK)
                if len(line) > MAX_ROW_BYTES:
                    raise DatasetError(f"line {number} is longer than {MAX_ROW_BYTES >> 20} MiB: is this JSONL?")
                if not line.isspace():
                    offsets.write(struct.pack("<Q", position))
                    found.rows += 1
                    try:
                        found.agents[agent_of(line, number)] += 1
                    except DatasetError as error:
                        found.add_problem(number, str(error))
                position += len(line)
            offsets.write(struct.pack("<Q", position))
    except OSError as error:
        raise DatasetError(f"can't be read: {error.strerror or error}") from error
    if not found.rows:
        raise DatasetError("has no rows")
    os.replace(partial, offsets_file)
    return found


def _prepare_one(
    entry: Entry,
    agents: AgentDirectory,
    folders: Folders,
    findings: Findings,
    schema: Schema | None,
    sample: bool,
    policy: Policy | None,
) -> DataFile:
    where, dataset = entry.where, entry.dataset
    copy = folders.data / f"{entry.stem}.jsonl"
    default = agents.default(dataset.agent, dataset.reasoning_gym is not None)
    if dataset.agent is not None and dataset.agent not in agents.names:
        findings.add(
            f"{where}.agent",
            f"names no agent of the Gym config, {dataset.agent!r}: {nearest(dataset.agent, agents.names)}",
        )
        agents = AgentDirectory(agents.names | {dataset.agent}, agents.reasoning_gym)  # said once, not for each row
    task = dataset.reasoning_gym
    if task is not None:
        if not agents.reasoning_gym and dataset.agent is None and agents.names:
            findings.add(
                f"{where}.reasoningGym",
                "no agent of the Gym config is in front of a reasoning_gym server, which scores these rows: add "
                "resources_servers/reasoning_gym/configs/reasoning_gym.yaml to spec.gym.configPaths",
            )
        elif default is None and agents.names:
            findings.add(f"{where}.agent", f"is needed, since the Gym config has several agents: {_listed(agents)}")
        if sample:
            generated.check_scoring(task)
        generated.write(task, copy, CHECKED_GENERATED_ROWS if sample else None)
        file = copy
    elif entry.prepared is not None:
        file = entry.prepared
    elif dataset.source is not None:
        file = _locate(dataset.source, entry, copy, folders)
    else:
        raise DatasetError("a dataset needs source or reasoningGym")
    label = dataset.source or (f"data.prepare:{entry.prepared.name}" if entry.prepared else where)
    offsets = folders.data / f"{entry.stem}.offsets"
    reader = RowReader(set(agents.names), default or (_any(agents) if task else None), schema)
    found = index_rows(file, offsets, reader.agent_of)
    for line, message in found.problems:
        findings.add(f"{label}:{line}", message)
    if found.problem_count > len(found.problems):
        rest = found.problem_count - len(found.problems)
        findings.add(label, f"{rest} more of {found.rows} rows can't be used")
    if policy is not None:
        warn_of_policy(policy, reader.facts, label, findings)
    rows = task.size if task else found.rows
    counts = {default: rows} if task and default else dict(found.agents)
    return DataFile(
        file=str(file),
        offsets_file=str(offsets),
        rows=rows,
        weight=dataset.weight if isinstance(dataset, Dataset) else 1,
        default_agent=default,
        agents=counts,
    )


def _locate(source: str, entry: Entry, copy: Path, folders: Folders) -> Path:
    """The dataset's file, copied where it must be."""
    match parse_data_source(source):
        case GymPath(path):
            roots = workspace.roots()
            found = workspace.find(Path(path), roots)
            if found is None or not any(found.resolve().is_relative_to(root.resolve()) for root in roots):
                beside = {
                    str(file.relative_to(root)) for root in roots for file in (root / path).parent.glob("*.jsonl")
                }
                raise DatasetError(f"the Gym image has no such file: {nearest(path, beside)}")
        case HubDataset() | StoredObject():
            found = folders.fetched / f"{entry.stem}.jsonl"
            if not found.exists():
                raise DatasetError("was not fetched: see the log of preflight's fetch-data container")
            return found
        case VolumeClaim(path=path) | VolumePath(path):
            mounted = folders.sources / entry.folder
            found = _inside(mounted, path, "the volume")
            if not found.is_dir():
                return found
        case ConfigMapKey(_, key):
            found = _inside(folders.sources / entry.folder, key, "the ConfigMap")
    if found.is_dir():
        inside = sorted(file.name for file in found.glob("*.jsonl"))
        raise DatasetError(f"is a folder: name one file, {nearest('', inside)}")
    partial = copy.with_name(copy.name + ".partial")
    shutil.copyfile(found, partial)
    os.replace(partial, copy)
    return copy


def _inside(mounted: Path, path: str, what: str) -> Path:
    file = mounted / path
    if not file.resolve().is_relative_to(mounted.resolve()):
        raise DatasetError(f"leads out of {what}")
    if not file.exists():
        if not mounted.is_dir():
            raise DatasetError(f"{what} is not mounted at {mounted}")
        beside = file.parent if file.parent.is_dir() else mounted
        there = [str(entry.relative_to(mounted)) for entry in beside.iterdir() if not entry.name.startswith(".")]
        raise DatasetError(f"{what} has no {path!r}: {nearest(path, there)}")
    return file


def _check_format(first: bytes) -> None:
    if first.startswith(b"\x1f\x8b"):
        raise DatasetError("is gzip-compressed: unpack it first")
    if first.startswith(b"PAR1"):
        raise DatasetError("is a Parquet file: convert it to JSONL, one JSON object per line")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first[:64]:
        raise DatasetError("is UTF-16 or binary: convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8")
    if first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        raise DatasetError("is a JSON list: write it as JSONL, one JSON object per line")


def _listed(agents: AgentDirectory) -> str:
    return ", ".join(sorted(agents.names))


def _any(agents: AgentDirectory) -> str | None:
    return min(agents.names, default=None)
