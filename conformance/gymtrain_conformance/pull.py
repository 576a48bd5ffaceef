"""Fetches one version as vLLM's pull engine does, and says what is wrong with it."""

import contextlib
import json
import struct
import urllib.error
import urllib.request
from collections import defaultdict
from urllib.parse import urljoin

from pydantic import TypeAdapter

from gymtrain_api.manifest import FETCH_HEADER, FETCHED, PullUpdate, WeightEnd, WeightHead, WeightPart

_SECONDS = 30.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_LATER: TypeAdapter[WeightPart | WeightEnd] = TypeAdapter(WeightPart | WeightEnd)
_ERRORS = (OSError, ValueError)  # ValidationError and urllib's errors are of these


class PullError(Exception):
    """What the trainer sent isn't a whole version."""


def fetch(update: PullUpdate) -> int:
    """Reads all of a version; returns its bytes.

    Raises:
        PullError: something is missing, damaged, or of another version.
    """
    try:
        parts = _manifest(update)
    except _ERRORS as error:
        raise PullError(f"{update.manifest_url}: {error}") from error
    files: dict[str, dict[int, bytes]] = defaultdict(dict)
    for part in parts:
        files[part.name][part.offset] = _part(update, part)
    for name, found in files.items():
        data = b"".join(found[offset] for offset in sorted(found))
        size = next(part.size for part in parts if part.name == name)
        if len(data) != size:
            raise PullError(f"{name}: its parts have {len(data)} bytes, the manifest says {size}")
        _check_safetensors(name, data)
    return sum(part.bytes for part in parts)


def tell_end(update: PullUpdate) -> None:
    """Says that there is nothing to wait for any more; whoever doesn't hear it asks some time."""
    url = urljoin(update.manifest_url, f"{FETCHED}/{update.fetch_id}")
    with contextlib.suppress(OSError):
        _HTTP.open(urllib.request.Request(url, b"", method="POST"), timeout=_SECONDS).close()  # noqa: S310


def _open(update: PullUpdate, url: str, **headers: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={**headers, FETCH_HEADER: update.fetch_id})  # noqa: S310 - see PullUpdate


def _manifest(update: PullUpdate) -> list[WeightPart]:
    with _HTTP.open(_open(update, update.manifest_url), timeout=_SECONDS) as answer:
        lines = [line for line in answer if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    head = WeightHead.model_validate_json(lines[0])
    if head.version != update.version:
        raise ValueError(f"it is of version {head.version}, the update of {update.version}")
    later = [_LATER.validate_json(line) for line in lines[1:]]
    parts = [line for line in later if isinstance(line, WeightPart)]
    if not later or not isinstance(later[-1], WeightEnd) or later[-1].parts != len(parts):
        raise ValueError(f"its last line has to be the end, with the number of parts ({len(parts)})")
    return parts


def _part(update: PullUpdate, part: WeightPart) -> bytes:
    url = urljoin(update.manifest_url, part.name)
    asked = _open(update, url, Range=f"bytes={part.offset}-{part.offset + part.bytes - 1}")
    try:
        with _HTTP.open(asked, timeout=_SECONDS) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        raise PullError(f"GET {url} answers {error.code}") from error
    except _ERRORS as error:
        raise PullError(f"GET {url}: {error}") from error
    if status != 206 or len(data) != part.bytes:
        raise PullError(f"GET {url}, a range of {part.bytes} bytes, answers {status} and {len(data)} bytes")
    digest = _blake3(data)
    if digest != part.blake3:
        raise PullError(f"{part.name}: blake3 is {digest}, the manifest says {part.blake3}")
    return bytes(data)


def _check_safetensors(name: str, data: bytes) -> None:
    try:
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PullError(f"{name} isn't a safetensors file: {error}") from error
    if 8 + length + max(ends, default=0) != len(data):
        raise PullError(f"{name} isn't a whole safetensors file")


def _blake3(data: bytes) -> str:
    from blake3 import blake3  # only where weights are sent

    return str(blake3(data).hexdigest())
