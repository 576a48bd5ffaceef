"""A step's rows as a file, Parquet or JSONL."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol


class StepTable(Protocol):
    """The rows of one step, all with the same columns: their types are Arrow's; JSON has its own of the same meaning.

    A list of numbers may be any array of them.
    """

    @property
    def step(self) -> int:
        """The optimizer step."""
        ...

    @property
    def kind(self) -> str:
        """What its file's name begins with."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """Their types, in order."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each by column."""
        ...


def write_jsonl(table: StepTable, file: BinaryIO) -> None:
    """One line a row. A number that JSON doesn't have, such as infinity, is null."""
    for row in table.rows():
        plain = {name: list(value) if table.columns[name].startswith("list") else value for name, value in row.items()}
        try:
            line = json.dumps(plain, allow_nan=False)
        except ValueError:
            line = json.dumps({name: _finite(value) for name, value in plain.items()})
        file.write(line.encode() + b"\n")


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_parquet(table: StepTable, file: BinaryIO) -> None:
    """One table, compressed with zstd. Tokens go from arrays into it without an object for each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(table.rows())
    columns = {name: [row[name] for row in rows] for name in table.columns}
    arrays = [_arrow_column(values, table.columns[name]) for name, values in columns.items()]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(table.columns)), file, compression="zstd")


def _arrow_column(values: list[Any], kind: str) -> Any:
    import numpy as np
    import pyarrow as pa

    types = {"string": pa.string(), "bool": pa.bool_(), "double": pa.float64(), "list<string>": pa.list_(pa.string())}
    numbers = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "float": np.float32}
    nullable = {"int32": pa.int32(), "int64": pa.int64()}
    if kind in nullable and None in values:
        return pa.array(values, nullable[kind])
    if kind in types:
        return pa.array(values, types[kind])
    if kind in numbers:
        return pa.array(np.asarray(values, numbers[kind]))
    parts = [np.asarray(value, numbers[kind.removeprefix("list<").removesuffix(">")]) for value in values]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate(parts))
