"""What a `source` string stands for."""

import pytest

from gymtrain_api import sources
from gymtrain_api.errors import SourceError
from gymtrain_api.sources import (
    ConfigMapKey,
    DataSource,
    GymPath,
    HuggingFace,
    ModelImage,
    ModelSource,
    VolumeClaim,
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
    ],
)
def test_each_form_of_a_data_source_is_parsed(source: str, parsed: DataSource) -> None:
    assert parse_data_source(source) == parsed


def test_a_scheme_that_nobody_parses_is_taken_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MODEL_SOURCE_PATTERN", ".*")
    monkeypatch.setattr(sources, "DATA_SOURCE_PATTERN", ".*")
    for parse in (parse_model_source, parse_data_source):
        with pytest.raises(SourceError, match="scheme 'ftp'"):
            parse("ftp://host/path")
