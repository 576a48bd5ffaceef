"""Hashes that say whether something has to be made anew."""

import hashlib
import json


def digest(*parts: object) -> str:
    """A short hash of JSON-like values; the order of mappings doesn't matter."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
