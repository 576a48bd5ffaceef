"""Does what vLLM is told to serve fit the model? vLLM refuses a context that is too long only when its pod starts."""

import json
from pathlib import Path

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.vllm_arguments import max_model_len
from gymtrain_api.wiring import Finding
from gymtrain_trainer.framework import ContextLength


def served_context(folder: Path, spec: GymTrainingRunSpec) -> tuple[ContextLength | None, list[Finding]]:
    """The tokens that prompt and answer have together, None where nobody says; findings where vLLM would refuse them.

    Args:
        folder: of the model. One whose limit its config doesn't say, or stretches (rope scaling), limits nothing.
        spec: of the run.
    """
    asked, limit = max_model_len(spec.inference.args), _limit(folder)
    if asked is not None and limit is not None and asked[1] > limit:
        message = (
            f"--max-model-len is {asked[1]}, but the model takes {limit} tokens (max_position_embeddings of its "
            f"config.json): use {limit} or less"
        )
        return None, [Finding(where=f"spec.inference.args[{asked[0]}]", message=message)]
    if asked is not None:
        return ContextLength(asked[1], "--max-model-len"), []
    if limit is not None:
        return ContextLength(limit, "max_position_embeddings of the model's config.json"), []
    return None, []


def _limit(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # the check of the folder says so
    if not isinstance(config, dict) or config.get("rope_scaling") or "factor" in (config.get("rope_parameters") or {}):
        return None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None
