"""Checks that vLLM and the trainer compute the same log-probabilities.

    rank 0, as a sync ends         the pods sample some tokens after each prompt
    all ranks, once they are out   one forward pass over what was sampled, of the model as it is trained
    rank 0                         compares

Checked after the first sync and some of the later ones. vLLM starts with random weights, so agreement shows that every
tensor arrived, under the right name, and is the one that is multiplied with.

A sharded model is not gathered for it. All ranks make the forward pass together, and FSDP gathers one layer, computes,
and frees it before the next, as in training; `Completion`s and their log-probabilities are all that goes between ranks.
Comparing weights instead would need vLLM's side of them, which it has under other names, fused and split over workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymtrain_api.sampling import in_full
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.errors import PodRefusedError, WeightParityError
from gymtrain_trainer.weights.pods.client import PodClient

if TYPE_CHECKING:
    import torch

# Mean |difference|. Measured on float32: below 1e-5. Half precision rounds each layer on another path.
_THRESHOLDS = {"float32": 0.02}
_THRESHOLD_HALF = 0.1
_TOKENS_AT_ONCE = 4096  # of a forward pass: less than a step of training computes


@dataclass(frozen=True)
class Completion:
    """Tokens that a model sampled after a prompt."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


# For each completion the log-probability of each of its tokens, at temperature 1.
type LogProbs = Callable[[Sequence[Completion]], list[list[float]]]


@dataclass(frozen=True)
class ParityCheck:
    """How to check."""

    prompts: list[list[int]]
    threshold: float | None = None  # mean |difference|; None: by the server's type
    max_tokens: int = 16


@dataclass(frozen=True)
class ParityCompletion:
    """What vLLM sampled."""

    completion: Completion
    logprobs: list[float]


async def completions_of(
    client: PodClient, check: ParityCheck, seconds: float, model: str = SERVED_MODEL_NAME
) -> list[ParityCompletion]:
    """One completion per prompt, all within `seconds`, with the log-probabilities of the sampled tokens.

    Raises:
        PodError: the server doesn't answer.
    """
    return await asyncio.gather(
        *(_complete(client, prompt, check.max_tokens, seconds, model) for prompt in check.prompts)
    )


async def _complete(
    client: PodClient, prompt: list[int], max_tokens: int, seconds: float, model: str
) -> ParityCompletion:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        **in_full(1.0),  # unscaled and whole: what the trainer computes
        "seed": 0,
        "logprobs": 0,  # of the sampled tokens only
        "return_token_ids": True,
        "ignore_eos": True,
    }
    answer = await client.complete(body, seconds)
    try:
        choice = answer["choices"][0]
        completion = Completion(tuple(prompt), tuple(choice["token_ids"]))
        return ParityCompletion(completion, list(choice["logprobs"]["token_logprobs"]))
    except (KeyError, IndexError, TypeError) as error:
        raise PodRefusedError("parity check", 200, f"no token ids and log-probabilities: {error!r}") from error


def judge(
    pod: str,
    sampled: list[ParityCompletion],
    computed: Mapping[Completion, Sequence[float]],
    check: ParityCheck,
    dtype: str | None,
) -> float:
    """Mean |difference| over all tokens, between what a pod says and what the trainer `computed`.

    Raises:
        WeightParityError: it is above the threshold.
    """
    differences = [
        abs(mine - theirs)
        for one in sampled
        for mine, theirs in zip(computed[one.completion], one.logprobs, strict=True)
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


def model_logprobs(model: Any, device: torch.device | None = None) -> LogProbs:
    """`LogProbs` of a model of transformers, with the attention that it has.

    Where FSDP shards the model, the function is a collective: all ranks call it, with the same completions. On return
    each holds its share alone, as before.

    Args:
        model: the outermost module that FSDP shards.
        device: that it computes on, where its parameters may be somewhere else.
    """

    def logprobs(completions: Sequence[Completion]) -> list[list[float]]:
        import torch

        found: dict[Completion, list[float]] = {}
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                for batch in _batches(completions):
                    found |= zip(batch, _scores(model, batch, device or model.device), strict=True)
        finally:
            model.train(training)
            _shard_again(model)
        return [found[completion] for completion in completions]

    return logprobs


def _batches(completions: Sequence[Completion]) -> Iterator[list[Completion]]:
    """Each of the completions once. Those of a batch have the same lengths, so that none needs padding: pods are asked
    for as many tokens after the same prompts, and there are few batches however many pods there are."""
    by_lengths: dict[tuple[int, int], list[Completion]] = {}
    for one in dict.fromkeys(completions):
        by_lengths.setdefault((len(one.prompt), len(one.tokens)), []).append(one)
    for lengths, alike in by_lengths.items():
        most = max(1, _TOKENS_AT_ONCE // sum(lengths))
        for start in range(0, len(alike), most):
            yield alike[start : start + most]


def _scores(model: Any, batch: list[Completion], device: torch.device) -> list[list[float]]:
    """One forward pass. Logits of the last tokens alone: those of all of them are the largest tensor by far."""
    import torch

    ids = torch.tensor([[*one.prompt, *one.tokens] for one in batch], device=device)
    tokens = len(batch[0].tokens)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=tokens + 1).logits
    scores = logits[:, -tokens - 1 : -1].float().log_softmax(-1)  # the logits at a place are of the token after it
    found: list[list[float]] = scores.gather(-1, ids[:, -tokens:, None])[..., 0].tolist()
    return found


def _shard_again(model: Any) -> None:
    """Frees what FSDP leaves gathered for a backward pass, which doesn't come: the root's parameters, the head's."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
