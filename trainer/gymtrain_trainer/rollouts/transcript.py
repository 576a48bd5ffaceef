"""What was said in a rollout, packed for its record: the row's input and tools, and what came out. No token ids; those
are in the samples."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_FAST = 1  # level of compression: a rollout of 10 kB takes a tenth of a millisecond
_TOKENS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})


def without_tokens(items: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Output items of a response, without the arrays that training needs of them."""
    return tuple({key: value for key, value in item.items() if key not in _TOKENS} for item in items)


def packed(row: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> bytes:
    """The conversation: an object with `input` (messages, or a text) and `output` (items) of NeMo Gym's Responses API,
    and with the `tools` that the model was given."""
    params = row.get("responses_create_params") or {}
    conversation = {"input": params.get("input"), "tools": params.get("tools") or [], "output": list(output)}
    return zlib.compress(json.dumps(conversation, separators=(",", ":"), default=str).encode(), _FAST)


def unpacked(conversation: bytes) -> str:
    """Its JSON; empty where nothing was packed."""
    return zlib.decompress(conversation).decode() if conversation else ""
