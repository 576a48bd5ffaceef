"""Rows of datasets: what of them is sent.

Rows that were exported from a table write null for every column that they leave open. NeMo Gym's servers take null for
a value: the model server of 0.4 fails on `metadata: null`, and on a tool with `description: null`. So null is left out
wherever the Responses API knows an unset field, and preflight judges rows as the trainer sends them.
"""

from collections.abc import Mapping
from typing import Any

# Left as they are. Below `parameters` and `schema` stand JSON schemas, where null is a value: {"default": null},
# {"enum": ["a", null]}. And a tool must have `parameters` and `strict`, even as null.
_KEPT = frozenset({"parameters", "schema", "strict"})


def without_nulls(params: Mapping[str, Any]) -> dict[str, Any]:
    """`responses_create_params` without the fields that are null, at any depth but in JSON schemas.

    Null as an item of a list stays: it stands for no field, so the servers' schema has to judge it.
    """
    return {
        name: value if name in _KEPT else _clean(value)
        for name, value in params.items()
        if value is not None or name in _KEPT
    }


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_nulls(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
