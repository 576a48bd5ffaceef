"""Checks that vLLM and the trainer compute the same log-probabilities.

Asked after the first sync and some of the later ones. vLLM starts with random weights, so agreement shows that every
tensor arrived, under the right name, and is the one that is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api.sampling import in_full
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.errors import PodRefusedError, WeightParityError
from gymtrain_trainer.weights.pods.client import PodClient

if TYPE_CHECKING:
    import torch

type LogProbs = Callable[[list[int], list[int]], list[float]]

# Mean |difference|. Measured on float32: below 1e-5. Half precision rounds each layer on another path.
_THRESHOLDS = {"float32": 0.02}
_THRESHOLD_HALF = 0.1


@dataclass(frozen=True)
class ParityCheck:
    """How to check."""

    logprobs: LogProbs  # (prompt ids, completion ids) -> log-probability of each completion token, temperature 1
    prompts: list[list[int]]
    threshold: float | None = None  # mean |difference|; None: by the server's type
    max_tokens: int = 16


@dataclass(frozen=True)
class ParityCompletion:
    """What vLLM sampled."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]


async def completions_of(
    client: PodClient, check: ParityCheck, seconds: float, model: str = SERVED_MODEL_NAME
) -> list[ParityCompletion]:
    """One completion per prompt, each within `seconds`, with the log-probabilities of the sampled tokens.

    Raises:
        PodError: the server doesn't answer.
    """
    completions = []
    for prompt in check.prompts:
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": check.max_tokens,
            **in_full(1.0),  # unscaled and whole: what the trainer computes
            "seed": 0,
            "logprobs": 0,  # of the sampled tokens only
            "return_token_ids": True,
            "ignore_eos": True,
        }
        answer = await client.complete(body, seconds)
        try:
            choice = answer["choices"][0]
            completions.append(
                ParityCompletion(prompt, list(choice["token_ids"]), list(choice["logprobs"]["token_logprobs"]))
            )
        except (KeyError, IndexError, TypeError) as error:
            raise PodRefusedError("parity check", 200, f"no token ids and log-probabilities: {error!r}") from error
    return completions


def judge(pod: str, completions: list[ParityCompletion], check: ParityCheck, dtype: str | None) -> float:
    """Mean |difference| over all tokens.

    Raises:
        WeightParityError: it is above the threshold.
    """
    differences = [
        abs(mine - theirs)
        for one in completions
        for mine, theirs in zip(check.logprobs(one.prompt, one.completion), one.logprobs, strict=True)
    ]
    mean = sum(differences) / max(1, len(differences))
    threshold = allowed(check, dtype)
    if not mean <= threshold:  # NaN fails too
        raise WeightParityError(
            f"after the weight sync {pod} computes other log-probabilities than the trainer: mean difference "
            f"{mean:.3g} over {len(differences)} tokens, allowed {threshold:g}. Some weights did not arrive: vLLM "
            f"may use other names for them, or the trainer freezes part of the model (then add --load-format=auto to "
            "spec.inference.args)."
        )
    return mean


def allowed(check: ParityCheck, dtype: str | None) -> float:
    """Mean |difference| that is still parity, for weights of `dtype` in vLLM."""
    return check.threshold if check.threshold is not None else _THRESHOLDS.get(dtype or "", _THRESHOLD_HALF)


class ShardedModelError(Exception):
    """This process holds only its share of the model, and computing with it needs all processes."""

    def __init__(self, config: Any) -> None:
        super().__init__("the model is sharded")
        self.config = config  # transformers' configuration of the model


def staged_logprobs(config: Any, files: list[Path]) -> LogProbs:
    """`ParityCheck.logprobs` of a copy of the model on the CPU, made of the files that vLLM fetched."""
    from copy import deepcopy

    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    with torch.device("cpu"):  # of a copy: training has put its own attention into the configuration
        model = AutoModelForCausalLM.from_config(deepcopy(config), dtype=torch.float32, attn_implementation="sdpa")
    for file in files:
        model.load_state_dict(load_file(file), strict=False)
    model.tie_weights()
    return model_logprobs(model)


def model_logprobs(model: Any) -> LogProbs:
    """`ParityCheck.logprobs` of a model of transformers, with the attention that it has.

    The function raises ShardedModelError for a model of which this process has only a part.
    """

    def logprobs(prompt: list[int], completion: list[int]) -> list[float]:
        import torch
        from torch.distributed.tensor import DTensor

        if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            raise ShardedModelError(model.config)
        ids = torch.tensor([prompt + completion], device=model.device)
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        finally:
            model.train(training)
        # The logits at position i are of token i + 1.
        scores = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        return [float(scores[i, token]) for i, token in enumerate(completion)]

    return logprobs
