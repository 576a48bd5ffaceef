"""The samples of a step as rows of a file, Parquet or JSONL. docs/records.md tells users of the columns."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from gymtrain_trainer.framework import TrainedSample
from gymtrain_trainer.rollouts.buffer import UsedGroup

# Arrow's types; JSON has its own of the same meaning
COLUMNS: Mapping[str, str] = {
    "step": "int64",
    "group": "int64",  # position of its row in the draw order
    "rollout": "int32",  # in the group
    "sample": "int32",  # in the group
    "agent": "string",
    "reward": "double",
    "reward_deviation": "double",  # of the group
    "advantage": "double",
    "ratio": "double",
    "version": "string",  # label of the weights that it met in the step
    "versions": "list<string>",  # labels of those that sampled it, oldest first
    "staleness": "int32",
    "truncated": "bool",
    "masked": "bool",
    "constrained": "bool",
    "token_ids": "list<int32>",
    "mask": "list<int8>",
    "log_probs": "list<float>",
}


@dataclass(frozen=True)
class StepSamples:
    """What is written of one step.

    Attributes:
        step: its number.
        used: the groups that are written.
        trained: what the step made of their samples.
        labels: of the model versions that `used` names.
    """

    step: int
    used: Sequence[UsedGroup]
    trained: Sequence[TrainedSample]
    labels: Mapping[int, str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One by sample, its columns in order; the tokens' are the sample's own arrays."""
        trained = {(one.group_id, one.index): one for one in self.trained}
        for one in self.used:
            for index, sample in enumerate(one.group.samples):
                made = trained.get((sample.group_id, index))
                yield {
                    "step": self.step,
                    "group": sample.group_id,
                    "rollout": sample.rollout,
                    "sample": index,
                    "agent": sample.agent,
                    "reward": sample.reward,
                    "reward_deviation": one.group.reward_deviation,
                    "advantage": made.advantage if made else None,
                    "ratio": made.ratio if made else None,
                    "version": self.labels[one.version],
                    "versions": [self.labels[version] for version in sample.versions],
                    "staleness": one.version - sample.version,
                    "truncated": sample.truncated,
                    "masked": sample.masked,
                    "constrained": sample.constrained,
                    "token_ids": sample.token_ids,
                    "mask": sample.mask,
                    "log_probs": sample.log_probs,
                }


def write_jsonl(samples: StepSamples, file: BinaryIO) -> None:
    """One line a row. A number that JSON doesn't have, such as infinity, is null."""
    for row in samples.rows():
        plain = {name: list(value) if COLUMNS[name].startswith("list") else value for name, value in row.items()}
        try:
            line = json.dumps(plain, allow_nan=False)
        except ValueError:
            line = json.dumps({name: _finite(value) for name, value in plain.items()})
        file.write(line.encode() + b"\n")


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_parquet(samples: StepSamples, file: BinaryIO) -> None:
    """One table, compressed with zstd. Tokens go from the samples' arrays into it without an object for each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(samples.rows())
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    arrays = [_arrow_column(values, COLUMNS[name]) for name, values in columns.items()]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(COLUMNS)), file, compression="zstd")


def _arrow_column(values: list[Any], kind: str) -> Any:
    import numpy as np
    import pyarrow as pa

    types = {"string": pa.string(), "bool": pa.bool_(), "double": pa.float64(), "list<string>": pa.list_(pa.string())}
    numbers = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "float": np.float32}
    if kind in types:
        return pa.array(values, types[kind])
    if kind in numbers:
        return pa.array(np.asarray(values, numbers[kind]))
    parts = [np.asarray(value, numbers[kind.removeprefix("list<").removesuffix(">")]) for value in values]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate(parts))
