"""Does the context that vLLM is told to serve fit the model? vLLM refuses it only when its pod starts."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from gymtrain_api.wiring import Finding

_OPTION = re.compile(r"^--max[-_]model[-_]len(?:=(.*))?$")


def check_context_length(folder: Path, arguments: Sequence[str]) -> list[Finding]:
    """A finding where `--max-model-len` is above the model's own limit.

    Args:
        folder: of the model. One whose limit its config doesn't say, or stretches (rope scaling), passes.
        arguments: spec.inference.args.
    """
    found = _asked(arguments)
    limit = _limit(folder)
    if found is None or limit is None or found[1] <= limit:
        return []
    position, length = found
    return [
        Finding(
            where=f"spec.inference.args[{position}]",
            message=f"--max-model-len is {length}, but the model takes {limit} tokens (max_position_embeddings of its "
            f"config.json): {limit} or less would do",
        )
    ]


def _asked(arguments: Sequence[str]) -> tuple[int, int] | None:
    """Position and value of the last such argument, if the value is a plain number."""
    found = None
    for position, argument in enumerate(arguments):
        if (match := _OPTION.match(argument)) is None:
            continue
        value = match[1] if match[1] is not None else next(iter(arguments[position + 1 :]), "")
        found = (position, int(value)) if value.isdecimal() else None
    return found


def _limit(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # the check of the folder says so
    if not isinstance(config, dict) or config.get("rope_scaling") or "factor" in (config.get("rope_parameters") or {}):
        return None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None
