"""The tokens of a rollout with their ratios, from the samples recorded beside it (spec.trainer.records.samples).

A ratio is a token's probability under the weights of the step that trained on it over that when it was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gymtrain_report.folder import RunFolder, read_rows

_TOKENIZER = "_tokenizer.json"
_COLUMNS = ("group", "rollout", "token_ids", "mask", "ratios")
_MOST = 20_000  # tokens of a rollout
_PARTS = 8  # tokens that together make a character, at most


def tokens_of(folder: RunFolder, rollout: dict[str, Any]) -> dict[str, list[Any]] | None:
    """What the policy sampled: the `texts` of its tokens, sample by sample, and their `ratios`.

    A text of None parts two answers. None where the samples of its step aren't recorded, or nothing that reads tokens
    is installed.

    Raises:
        ReportError: the file of samples is damaged.
    """
    if rollout.get("outcome") != "trained":
        return None
    records = folder.path / "records"
    tokenizer = _tokenizer(records / _TOKENIZER)
    if tokenizer is None:
        return None
    texts: list[str | None] = []
    ratios: list[float | None] = []
    for path in records.glob(f"step-{rollout['step']:08d}.*"):
        for row in _samples(path, rollout["group"], rollout["rollout"]):
            if row.get("ratios"):
                _add(tokenizer, row, texts, ratios)
    return {"texts": texts[:_MOST], "ratios": ratios[:_MOST]} if texts else None


def _add(tokenizer: Any, row: dict[str, Any], texts: list[str | None], ratios: list[float | None]) -> None:
    waiting: list[int] = []  # tokens that are no text by themselves, such as a part of an emoji
    apart = bool(texts)
    for token, trained, ratio in zip(row["token_ids"], row["mask"], row["ratios"], strict=True):
        if not trained:
            waiting, apart = [], bool(texts)
            continue
        if apart:
            texts.append(None)
            ratios.append(None)
            apart = False
        waiting.append(token)
        text = tokenizer.decode(waiting, skip_special_tokens=False)
        whole = "\ufffd" not in text or len(waiting) == _PARTS
        texts.append(text if whole else "")
        ratios.append(round(ratio, 3))
        waiting = [] if whole else waiting


def _samples(path: Path, group: int, rollout: int) -> Sequence[dict[str, Any]]:
    """Rows of the samples of one rollout."""
    try:
        held = _held(path, path.stat().st_size)
    except FileNotFoundError:  # the oldest make room for new ones
        return []
    if isinstance(held, list):
        return [row for row in held if (row["group"], row["rollout"]) == (group, rollout)]
    import pyarrow.compute as pc

    found: list[dict[str, Any]] = held.filter(
        (pc.field("group") == group) & (pc.field("rollout") == rollout)
    ).to_pylist()
    return found


@lru_cache(maxsize=1)
def _held(path: Path, size: int) -> Any:
    """The samples of a step: a list of rows, or an Arrow table, which is a tenth as large. One rollout after the other
    is asked of it. `size`: it may be written anew."""
    if path.suffix != ".parquet":
        return read_rows(path)
    import pyarrow.parquet as pq

    there = set(pq.read_schema(path).names)
    return pq.read_table(path, columns=[name for name in _COLUMNS if name in there])


@lru_cache(maxsize=2)
def _read_tokenizer(path: Path, changed: int) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _tokenizer(path: Path) -> Any:
    try:
        return _read_tokenizer(path, path.stat().st_mtime_ns)
    except (ImportError, FileNotFoundError):
        return None
