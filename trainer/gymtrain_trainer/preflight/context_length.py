"""Does what vLLM is told to serve fit the model, and what training makes of it fit into that?

vLLM refuses a context that is too long only when its pod starts, and an answer that is too long with every rollout.
"""

import json
from pathlib import Path

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.vllm_arguments import max_model_len
from gymtrain_api.wiring import Finding
from gymtrain_trainer.trl.settings import Batch, max_completion_length

_CONFIG = "spec.trainer.config"


def check_lengths(folder: Path, spec: GymTrainingRunSpec) -> list[Finding]:
    """Findings where lengths don't fit into each other, in tokens.

    Args:
        folder: of the model. One whose limit its config doesn't say, or stretches (rope scaling), limits nothing.
        spec: of the run.
    """
    asked, limit = max_model_len(spec.inference.args), _limit(folder)
    if asked is not None and limit is not None and asked[1] > limit:
        message = (
            f"--max-model-len is {asked[1]}, but the model takes {limit} tokens (max_position_embeddings of its "
            f"config.json): {limit} or less would do"
        )
        return [Finding(where=f"spec.inference.args[{asked[0]}]", message=message)]
    context = asked[1] if asked is not None else limit
    if context is None:
        return []
    source = "--max-model-len" if asked is not None else "max_position_embeddings of the model's config.json"
    return [*_answers(spec, context, source), *_budget(spec, context, source)]


def _answers(spec: GymTrainingRunSpec, context: int, source: str) -> list[Finding]:
    answer = max_completion_length(spec)
    if answer < context:
        return []
    default = "" if "max_completion_length" in spec.trainer.config else " (TRL's default)"
    message = (
        f"is {answer} tokens{default}, but prompt and answer together have {context} ({source}), so vLLM refuses every "
        "request: lower it until the prompts fit too, or raise --max-model-len in spec.inference.args"
    )
    return [Finding(where=f"{_CONFIG}.max_completion_length", message=message)]


def _budget(spec: GymTrainingRunSpec, context: int, source: str) -> list[Finding]:
    budget = Batch.of(spec).token_budget
    if not 0 < budget < context:
        return []
    message = (
        f"is {budget} tokens, and prompt and answer may have {context} ({source}): TRL drops every sample that is "
        "longer than the budget, so long answers would never be trained. Raise it to that, or set "
        f"--max-model-len={budget} in spec.inference.args"
    )
    return [Finding(where=f"{_CONFIG}.token_budget", message=message)]


def _limit(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # the check of the folder says so
    if not isinstance(config, dict) or config.get("rope_scaling") or "factor" in (config.get("rope_parameters") or {}):
        return None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None
