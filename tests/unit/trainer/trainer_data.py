"""Indexed datasets for tests, in the format of the wiring contract, and groups of samples."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymtrain_api.wiring import DataFile, DataIndex
from gymtrain_trainer.framework import SampleGroup, TrainingSample


def question(number: int, agent: str | None = None) -> dict[str, Any]:
    """A row."""
    row: dict[str, Any] = {
        "responses_create_params": {"input": [{"role": "user", "content": f"{number} + 1 ="}]},
        "number": number,
    }
    return row | ({"agent_ref": {"type": "responses_api_agents", "name": agent}} if agent else {})


def write_dataset(
    folder: Path, rows: list[dict[str, Any]], *, name: str = "train-0", weight: int = 1, agent: str | None = "adder"
) -> DataFile:
    """Writes rows and offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets, data = [0], b""
    for row in rows:
        data += json.dumps(row).encode() + b"\n"
        offsets.append(len(data))
    (folder / f"{name}.jsonl").write_bytes(data)
    (folder / f"{name}.offsets").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    return DataFile(
        file=f"{name}.jsonl",
        offsets_file=f"{name}.offsets",
        rows=len(rows),
        weight=weight,
        default_agent=agent,
    )


def write_index(folder: Path, *files: DataFile, validation: Sequence[DataFile] = ()) -> Path:
    """Writes index.json."""
    path = folder / "index.json"
    path.write_text(DataIndex(train=list(files), validation=list(validation)).model_dump_json())
    return path


def group(
    number: int, *, rewards: Sequence[float] | None = None, versions: Sequence[int] | None = None, agent: str = "adder"
) -> SampleGroup:
    """A group of one sample a rollout: two tokens of prompt, two that were sampled."""
    count = len(rewards or versions or [0, 1])
    rewards = tuple(rewards or [0.0] * count)
    samples = tuple(
        TrainingSample(
            token_ids=[1, 2, 5, 6 + rollout],
            mask=[0, 0, 1, 1],
            log_probs=[0.0, 0.0, -0.5, -0.5],
            versions=((versions or [1] * count)[rollout],),
            group_id=number,
            rollout=rollout,
            agent=agent,
            reward=rewards[rollout],
        )
        for rollout in range(count)
    )
    return SampleGroup(number, agent, rewards, samples)
