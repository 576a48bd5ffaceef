"""hf:// sources, with huggingface_hub and datasets themselves, on a stand-in of the hub."""

import io
import json
from typing import Any

import pytest

from tests.data_sources.conftest import Fetch
from tests.support.hub import COMMIT, Hub

pytestmark = pytest.mark.data_sources

ROW = {"responses_create_params": {"input": "2 + 2 ="}, "answer": "4"}
LINES = (json.dumps(ROW) + "\n").encode() * 1000


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    output = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), output)
    return output.getvalue()


def endpoint(hub: Hub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, **more}


def test_file_is_fetched_byte_by_byte(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"some/train.jsonl": LINES}
    done = fetch("hf://org/rows/some/train.jsonl", secret=endpoint(the_hub))
    assert done.code == 0, done.output
    assert done.rows() == LINES


def test_split_is_read_with_the_hub_s_own_loader(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"data/train-00000-of-00001.parquet": parquet([ROW] * 500)}
    done = fetch("hf://org/rows@main/train", secret=endpoint(the_hub))
    assert done.code == 0, done.output
    assert [json.loads(line) for line in done.rows().splitlines()] == [ROW] * 500
    assert done.note()["version"] == COMMIT


def test_parquet_file_is_read_with_the_loader_too(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"mine.parquet": parquet([ROW] * 3), "other.parquet": parquet([{"x": 1}])}
    done = fetch("hf://org/rows/mine.parquet", secret=endpoint(the_hub))
    assert [json.loads(line) for line in done.rows().splitlines()] == [ROW] * 3


def test_token_of_the_secret_opens_a_dataset(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"train.jsonl": LINES}
    the_hub.token = "hf_right"
    assert fetch("hf://org/rows/train.jsonl", secret=endpoint(the_hub, HF_TOKEN="hf_right")).rows() == LINES
    for more in ({}, {"HF_TOKEN": "hf_wrong"}):
        done = fetch("hf://org/rows/train.jsonl", secret=endpoint(the_hub, **more))
        assert done.code == 78
        assert "secret" in done.output
        assert "hf_wrong" not in done.output


def test_connection_that_breaks_goes_on_where_it_stopped(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"train.jsonl": LINES}
    the_hub.breaks = 2
    done = fetch("hf://org/rows/train.jsonl", secret=endpoint(the_hub))
    assert done.code == 0, done.output
    assert done.rows() == LINES


def test_split_that_is_not_there_is_refused_with_those_that_are(the_hub: Hub, fetch: Fetch) -> None:
    the_hub.files["org/rows"] = {"data/train-00000-of-00001.parquet": parquet([ROW])}
    done = fetch("hf://org/rows/tset", secret=endpoint(the_hub))
    assert done.code == 78
    assert "Available splits: ['train']" in done.output


@pytest.mark.parametrize("path", ["train.jsonl", "train"])
def test_dataset_that_is_not_there_is_refused_at_once(the_hub: Hub, fetch: Fetch, path: str) -> None:
    done = fetch(f"hf://org/none/{path}", secret=endpoint(the_hub))
    assert done.code == 78
    assert "secret" in done.output
    assert "try 1" not in done.output
