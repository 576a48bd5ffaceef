"""The smallest changes with which training fits, the cheapest first.

Cheap is what costs nothing but time: first smaller micro-batches, of which a step then has more; gradient
checkpointing, a third more computing; FSDP2, which sends weights around. An adapter trains something else, and more
GPUs cost money. The first that is enough is proposed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from gymtrain_trainer.sizing.serving import Serving
from gymtrain_trainer.sizing.training import Adapter, Training, gpu

_RANK = 16
_GPUS = 8  # of a node
_NODES = (1, 2, 4, 8, 16)
_TENSOR_PARALLEL = (1, 2, 4, 8)


@dataclass(frozen=True)
class Proposal:
    """Changes with which it fits."""

    changes: tuple[str, ...]
    training: Training


def proposals(training: Training) -> list[Proposal]:
    """None if it fits already. Else the cheapest changes on the same GPUs; where none is enough, an adapter in place of
    all weights, and the same on more GPUs: each on the fewest with which it fits."""
    if gpu(training).fits:
        return []
    if (found := on_the_same_gpus(training)) is not None:
        return [found]
    candidates = [_first(training, _on_more_gpus(training))]
    if training.adapter is None:
        adapted = replace(training, adapter=Adapter(_RANK))
        candidates.insert(0, _first(training, chain(_settings(adapted), _on_more_gpus(adapted))))
    return [proposal for proposal in candidates if proposal is not None]


def on_the_same_gpus(training: Training) -> Proposal | None:
    """The cheapest changes of settings alone, none of them where it fits already; None where they aren't enough."""
    return _first(training, _settings(training))


def _first(training: Training, candidates: Iterator[Training]) -> Proposal | None:
    found = next((candidate for candidate in candidates if gpu(candidate).fits), None)
    return Proposal(_changes(training, found), found) if found is not None else None


def _settings(training: Training) -> Iterator[Training]:
    """The same GPUs, weights and samples, the cheapest first."""
    shardings = {training.sharded, training.sharded or training.processes > 1}
    for sharded in sorted(shardings):
        for checkpointing in sorted({training.checkpointing, True}):
            for tokens in _micro_batches(training):
                yield replace(training, sharded=sharded, checkpointing=checkpointing, tokens=tokens)


def _micro_batches(training: Training) -> Iterator[int]:
    """Tokens of a micro-batch: halved, down to one sample."""
    tokens = training.tokens
    while tokens > training.length:
        yield tokens
        tokens = max(training.length, tokens // 2)
    yield tokens


def _on_more_gpus(training: Training) -> Iterator[Training]:
    """First in each node, then in more of them."""
    gpus = training.gpus
    while (gpus := gpus * 2) <= _GPUS:
        yield from _settings(replace(training, gpus=gpus))
    for nodes in _NODES:
        if nodes > training.nodes:
            yield from _settings(replace(training, nodes=nodes, gpus=max(training.gpus, _GPUS)))


def _changes(before: Training, after: Training) -> tuple[str, ...]:
    """What is different, in the words of a GymTrainingRun."""
    changes = []
    if after.tokens < before.tokens:
        samples, fewer = before.tokens // before.length, after.tokens // after.length
        changes.append(
            f"micro-batches of {after.tokens} tokens: trainer.config.token_budget: {after.tokens}, or "
            f"per_device_train_batch_size: {fewer} with gradient_accumulation_steps times {-(-samples // fewer)}"
        )
    if after.checkpointing and not before.checkpointing:
        changes.append("trainer.config.gradient_checkpointing: true")
    if after.sharded and not before.sharded:
        changes.append("trainer.config.fsdp: true")
    if after.adapter is not None and before.adapter is None:
        changes.append(f"model.lora: {{r: {after.adapter.rank}, target_modules: all-linear}}")
    if (after.nodes, after.gpus) != (before.nodes, before.gpus):
        changes.append(f"trainer: {{nodes: {after.nodes}, gpus: {after.gpus}, processesPerNode: {after.gpus}}}")
    return tuple(changes)


def serving_proposal(serving: Serving) -> Serving | None:
    """More GPUs for each vLLM server, the fewest with which it fits; None if it fits already, or with none of them."""
    if serving.fits:
        return None
    wider = (replace(serving, tensor_parallel=n) for n in _TENSOR_PARALLEL if n > serving.tensor_parallel)
    return next((candidate for candidate in wider if candidate.fits), None)
