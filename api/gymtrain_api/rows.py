"""Rows of datasets, as they are sent, and NeMo Gym's marks in what comes back.

Rows exported from a table have null in every empty column. NeMo Gym's servers treat null as a value: the model server
of 0.4 fails on `metadata: null`, and on a tool with `description: null`. So null is left out wherever the Responses API
allows an unset field, and preflight checks rows as the trainer sends them.
"""

from collections.abc import Mapping
from typing import Any

# In an answer of /run or /verify whose reward is no measurement: of what kind the failure is, and what a judge said.
# Gym's own rollout collection reads them (nemo_gym.rollout_collection, nemo_gym.judge).
FAILURE_CLASS = "_ng_failure_class"
JUDGE_ERROR = "_ng_failure_judge_error"

# These stay unchanged. `parameters` and `schema` contain JSON schemas, where null is a value: {"default": null},
# {"enum": ["a", null]}. A tool must have `parameters` and `strict`, even if null.
_KEPT = frozenset({"parameters", "schema", "strict"})


def without_nulls(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `responses_create_params` without null fields, at any depth except in JSON schemas.

    Null as an item of a list stays: it is not an unset field, so the servers' schema must check it.
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
