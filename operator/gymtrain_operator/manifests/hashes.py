"""Hashes that say whether something has to be made anew."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel


def settings(part: BaseModel, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A part of the spec as input of a hash: only what differs from the defaults. So a field that a later
    release adds changes no hash, and spelling a default out is no change either."""
    return part.model_dump(mode="json", exclude_defaults=True, exclude=set(without))


def digest(*parts: object) -> str:
    """A short hash of JSON-like values; the order of mappings doesn't matter."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
