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
        ({"tools": [{"name": "f", "description": None}]}, {"tools": [{"name": "f"}]}),
        ({"tools": [None]}, {"tools": [None]}),
        ({"store": False, "top_logprobs": 0, "tools": []}, {"store": False, "top_logprobs": 0, "tools": []}),
    ],
)
def test_null_is_left_out_as_unset(given: dict[str, Any], sent: dict[str, Any]) -> None:
    assert without_nulls(given) == sent


@pytest.mark.parametrize(
    "params",
    [
        {"tools": [{"name": "f", "parameters": None, "strict": None}]},
        {"tools": [{"name": "f", "parameters": {"properties": {"a": {"default": None, "enum": [1, None]}}}}]},
        {"text": {"format": {"type": "json_schema", "schema": {"properties": {"a": {"const": None}}}}}},
    ],
)
def test_null_stays_where_it_is_a_value_or_the_field_is_needed(params: dict[str, Any]) -> None:
    assert without_nulls(params) == params
