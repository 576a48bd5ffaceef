"""A run's folder: its curves, its evaluations, and the rollouts that were recorded."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymtrain_report.errors import ReportError

_FILE = re.compile(r"^(?P<kind>step|evaluation)-(?P<step>\d+)\.(?P<format>parquet|jsonl)$")
_LINE_BYTES = 64 << 20  # of one rollout as JSON


@dataclass(frozen=True, order=True)
class RecordFile:
    """One file of rollouts. Ordered by step, and for a step by what ended first."""

    step: int
    evaluation: bool
    name: str
    size: int

    @property
    def key(self) -> str:
        """Names the file and what is in it now: an attempt that goes on from a checkpoint writes some anew."""
        return f"{self.name}:{self.size}"


class RunFolder:
    """Reads the folder; what is not there yet is empty."""

    def __init__(self, path: Path, run: str = "") -> None:
        """
        Args:
            path: of the run's folder.
            run: its name; without it, the folder's.

        Raises:
            ReportError: it isn't there, or isn't a run's.
        """
        if not path.is_dir():
            raise ReportError(f"there is no folder {path}: name the run's folder on its checkpoint volume")
        if not (path / "rewards.csv").exists() and not (path / "evaluations.csv").exists():
            raise ReportError(f"{path} has neither rewards.csv nor evaluations.csv: no step of the run has ended yet")
        self.path = path
        self.run = run or path.resolve().name

    def steps(self) -> list[dict[str, float | None]]:
        """Rows of rewards.csv, numbers by column."""
        return [{name: _number(value) for name, value in row.items()} for row in self._csv("rewards.csv")]

    def evaluations(self) -> list[dict[str, Any]]:
        """Rows of evaluations.csv; `environment` and `version` are texts."""
        texts = {"environment", "version", "failures"}
        return [
            {name: value if name in texts else _number(value) for name, value in row.items()}
            for row in self._csv("evaluations.csv")
        ]

    def files(self) -> list[RecordFile]:
        """Those of rollouts, in order."""
        folder, found = self.path / "rollouts", []
        for path in folder.iterdir() if folder.is_dir() else ():
            if match := _FILE.match(path.name):
                try:
                    size = path.stat().st_size
                except FileNotFoundError:  # the oldest make room for new ones
                    continue
                found.append(RecordFile(int(match["step"]), match["kind"] == "evaluation", path.name, size))
        return sorted(found)

    def rollouts(self, file: RecordFile) -> Sequence[dict[str, Any]]:
        """Its rows by column; none where it has been removed meanwhile.

        Raises:
            ReportError: it is damaged.
        """
        return read_rows(self.path / "rollouts" / file.name)

    def _csv(self, name: str) -> list[dict[str, str]]:
        path = self.path / name
        if not path.exists():
            return []
        with path.open(newline="") as file:
            # The last row may be half written.
            return [row for row in csv.DictReader(file) if None not in row.values()]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of records, Parquet or lines of JSON; none where it has been removed meanwhile.

    Raises:
        ReportError: it is damaged, or nothing that reads it is installed.
    """
    try:
        if path.suffix != ".parquet":
            return list(_json_lines(path))
        import pyarrow.parquet as pq

        return list(pq.read_table(path).to_pylist())
    except ImportError as error:
        raise ReportError(f"{path} needs pyarrow: pip install pyarrow") from error
    except FileNotFoundError:
        return []
    except (ValueError, OSError) as error:  # pyarrow's own are of these
        raise ReportError(f"{path} can't be read: {error}. Remove it to go on without") from error


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        while line := file.readline(_LINE_BYTES):
            yield json.loads(line)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def conversation(row: dict[str, Any]) -> dict[str, Any]:
    """What was said: `input`, `tools` and `output`; empty where it wasn't kept."""
    text = row.get("conversation") or "{}"
    told = json.loads(text)
    return told if isinstance(told, dict) else {}


def texts(told: Any) -> Iterator[str]:
    """All texts of a conversation, in order, for the search."""
    if isinstance(told, str):
        yield told
    elif isinstance(told, dict):
        for key, value in told.items():
            if key not in ("type", "role", "id", "status", "call_id", "tools"):
                yield from texts(value)
    elif isinstance(told, list):
        for one in told:
            yield from texts(one)


def last_words(told: dict[str, Any], most: int = 200) -> str:
    """How the model's last message, or else its last call, begins."""
    for item in reversed(told.get("output") or []):
        if not isinstance(item, dict):
            continue
        if item.get("type") == "message" and (text := " ".join(texts(item.get("content"))).strip()):
            return text[:most]
        if item.get("type") == "function_call":
            return f"{item.get('name')}({item.get('arguments')})"[:most]
    return ""


def finite(value: Any) -> Any:
    """NaN and infinity, which JSON doesn't have, as null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return value
