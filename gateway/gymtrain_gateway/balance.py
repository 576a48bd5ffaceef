"""Which admissible pod gets a call: pure.

A conversation stays with one pod, whose prefix cache holds its earlier turns: the pod that wins the rendezvous hash of
the conversation, so that pods that come or go move few conversations. It yields to the least loaded pod when it is full
or clearly busier.
"""

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

_BUSIER = 2.0  # times the least loaded pod's calls
_SLACK = 8  # calls; below, a difference in load doesn't matter


def conversation(body: Mapping[str, Any]) -> str:
    """Names the conversation: all turns begin with the same messages, up to the first of the user."""
    messages = body.get("messages")
    head: list[Any] = []
    for message in messages if isinstance(messages, list) else [body.get("prompt") or body.get("input")]:
        head.append(message)
        if isinstance(message, dict) and message.get("role") == "user":
            break
    text = json.dumps([head, body.get("tools")], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def choose(key: str, loads: Mapping[str, int], limit: int, avoid: AbstractSet[str] = frozenset()) -> str | None:
    """A pod of `loads` (calls in flight by URL) with less than `limit` calls; None while all are full.

    Pods to avoid are taken only where there is no other.
    """
    allowed = {url: load for url, load in loads.items() if url not in avoid} or loads
    if not allowed:
        return None
    order = sorted(allowed, key=lambda url: _score(key, url), reverse=True)
    sticky = order[0]
    least = min(order, key=lambda url: allowed[url])
    busier = allowed[sticky] > _BUSIER * allowed[least] + _SLACK
    picked = least if busier or allowed[sticky] >= limit else sticky
    return picked if allowed[picked] < limit else None


def _score(key: str, url: str) -> bytes:
    return hashlib.blake2b(f"{key} {url}".encode(), digest_size=8).digest()
