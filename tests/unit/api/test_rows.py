"""What of a row is sent."""

from typing import Any

import pytest

from gymtrain_api.rows import without_nulls


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"input": "q", "metadata": None}, {"input": "q"}),
        ({"metadata": {"extra_body": None, "a": "1"}}, {"metadata": {"a": "1"}}),
        ({"input": [{"role": "user", "type": None}]}, {"input": [{"role": "user"}]}),
        ({"tools": [{"name": "f", "description": None, "parameters": None}]}, {"tools": [{"name": "f"}]}),
        ({"tools": [None]}, {"tools": [None]}),
        ({"store": False, "top_logprobs": 0, "tools": []}, {"store": False, "top_logprobs": 0, "tools": []}),
    ],
)
def test_null_is_left_out_as_unset(given: dict[str, Any], sent: dict[str, Any]) -> None:
    assert without_nulls(given) == sent


@pytest.mark.parametrize(
    "params",
    [
        {"tools": [{"name": "f", "parameters": {"properties": {"a": {"default": None, "enum": [1, None]}}}}]},
        {"text": {"format": {"type": "json_schema", "schema": {"properties": {"a": {"const": None}}}}}},
    ],
)
def test_null_in_a_json_schema_is_a_value(params: dict[str, Any]) -> None:
    assert without_nulls(params) == params
