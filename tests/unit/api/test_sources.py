"""What a `source` string stands for."""

import pytest

from gymtrain_api import sources
from gymtrain_api.errors import SourceError
from gymtrain_api.sources import (
    ConfigMapKey,
    DataSource,
    GymPath,
    HubDataset,
    HuggingFace,
    ModelImage,
    ModelSource,
    StoredObject,
    VolumeClaim,
    VolumePath,
    parse_data_source,
    parse_model_source,
)


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        ("hf://org/name", HuggingFace("org/name")),
        ("oci://registry/image:1", ModelImage("registry/image:1")),
        ("pvc://models", VolumeClaim("models", "")),
        ("pvc://models/a/b", VolumeClaim("models", "a/b")),
    ],
)
def test_each_form_of_a_model_source_is_parsed(source: str, parsed: ModelSource) -> None:
    assert parse_model_source(source) == parsed


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        ("pvc://data/a/rows.jsonl", VolumeClaim("data", "a/rows.jsonl")),
        ("configmap://rows/rows.jsonl", ConfigMapKey("rows", "rows.jsonl")),
        ("gym://resources_servers/math/data/example.jsonl", GymPath("resources_servers/math/data/example.jsonl")),
        ("volume://a/rows.jsonl", VolumePath("a/rows.jsonl")),
        ("s3://bucket/a/rows.jsonl", StoredObject("s3", "s3://bucket/a/rows.jsonl")),
        ("gs://bucket/rows.jsonl", StoredObject("gs", "gs://bucket/rows.jsonl")),
        ("az://container/rows.jsonl", StoredObject("az", "az://container/rows.jsonl")),
        ("hf://org/name/a/rows.jsonl", HubDataset("org/name", None, "a/rows.jsonl")),
        ("hf://org/name@v1.0/config/train", HubDataset("org/name", "v1.0", "config/train")),
    ],
)
def test_each_form_of_a_data_source_is_parsed(source: str, parsed: DataSource) -> None:
    assert parse_data_source(source) == parsed


@pytest.mark.parametrize(
    "source", ["hf://org/name", "hf://org/name@v1", "s3://bucket", "volume:///rows.jsonl", "gs:///x"]
)
def test_data_source_without_a_file_is_refused(source: str) -> None:
    with pytest.raises(SourceError, match="must be pvc://"):
        parse_data_source(source)


@pytest.mark.parametrize(
    ("path", "is_split"), [("train", True), ("config/train", True), ("train.jsonl", False), ("v1.0/train", True)]
)
def test_hub_path_with_a_file_s_ending_is_a_file(path: str, is_split: bool) -> None:
    assert HubDataset("org/name", None, path).is_split is is_split


def test_a_scheme_that_nobody_parses_is_taken_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MODEL_SOURCE_PATTERN", ".*")
    monkeypatch.setattr(sources, "DATA_SOURCE_PATTERN", ".*")
    for parse in (parse_model_source, parse_data_source):
        with pytest.raises(SourceError, match="scheme 'ftp'"):
            parse("ftp://host/path")
