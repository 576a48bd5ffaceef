"""The prompts that a gateway pod really used."""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from gymtrain_gateway.history import without_ids
from gymtrain_gateway.lru import LRU


class UsedPrompts:
    """Prompts of recent chat completions, for clients that ask /tokenize for what they were."""

    def __init__(self, capacity: int) -> None:
        self._tokens: LRU[str, array[int]] = LRU(capacity, weight=len)

    @property
    def held(self) -> int:
        """Tokens kept."""
        return self._tokens.held

    def note(self, body: Mapping[str, Any], prompt: Sequence[int]) -> None:
        """Remembers the prompt of one chat completion."""
        self._tokens.put(prompt_key(body), array("I", prompt))

    def find(self, body: Mapping[str, Any]) -> list[int] | None:
        """The prompt of a chat completion with these messages."""
        tokens = self._tokens.get(prompt_key(body))
        return None if tokens is None else list(tokens)


def prompt_key(body: Mapping[str, Any]) -> str:
    """Digest of all in a request that makes the prompt. The last answer's tokens have those of earlier ones in them."""
    messages = body["messages"]
    last: Mapping[str, Any] = next((one for one in reversed(messages) if one.get("prompt_token_ids")), {})
    parts = [
        last.get("prompt_token_ids"),
        last.get("generation_token_ids"),
        without_ids(messages),
        body.get("tools"),
        body.get("chat_template_kwargs"),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
