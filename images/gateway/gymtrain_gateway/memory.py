"""What a gateway pod remembers of its calls: the ledger, and the prompts that it really used."""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from gymtrain_api.ledger import LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_gateway.history import without_ids
from gymtrain_gateway.lru import LRU

_VERSIONS_KEPT = 16  # of one entry


class Ledger:
    """Which weights sampled which tokens."""

    def __init__(self, capacity: int) -> None:
        self._entries: LRU[str, LedgerEntry] = LRU(capacity)

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, prompt: Sequence[int], output: Sequence[int], entry: LedgerEntry) -> None:
        """Remembers one call. Calls with equal tokens share an entry: it names all versions that sampled them."""
        digest = token_digest(prompt, output)
        self._entries.put(digest, _merged(self._entries.get(digest), entry))

    def answer(self, question: LedgerQuestion) -> LedgerAnswer:
        """The entries that are here."""
        found = {digest: self._entries.get(digest) for digest in question.digests}
        return LedgerAnswer(entries={digest: entry for digest, entry in found.items() if entry is not None})


def _merged(old: LedgerEntry | None, new: LedgerEntry) -> LedgerEntry:
    """Versions of another attempt than the new entry's are forgotten: no trainer asks for them any more."""
    if old is None:
        return new
    attempt = new.versions[-1].rpartition(":")[0]
    earlier = [label for label in old.versions if label.rpartition(":")[0] == attempt and label not in new.versions]
    history = "forked" if "forked" in (old.history, new.history) else new.history
    versions = [*earlier, *new.versions][-_VERSIONS_KEPT:]
    constrained = old.constrained or new.constrained
    replaced = tuple(dict.fromkeys([*old.replaced, *new.replaced]))
    update = {"versions": versions, "history": history, "constrained": constrained, "replaced": replaced}
    return new.model_copy(update=update)


class Prompts:
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
