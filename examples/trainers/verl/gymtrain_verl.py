"""What verl finds by its own names in each of its processes (actor_rollout_ref.model.external_lib):

    data.custom_cls                    Rows       the run's rows, by number
    rollout.agent.default_agent_loop   RowLoop    a rollout: the row's agent is asked
    rollout.name                       Sender     the weights after a step go to the run's vLLM pods
                                       NoServers  verl starts no server of its own

All of them ask train.py (rpc.py).
"""

import asyncio
import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rpc import service
from safetensors.torch import save_file
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "gymtrain"
_FILE_BYTES = 4 << 30


class RolloutFailedError(Exception):
    """Of one that failed for good. verl trains on the rest of its group."""


class Rows(Dataset[dict[str, Any]]):
    """The rows of data.train. What verl takes along is a row's number; the row itself stays with the trainer."""

    def __init__(self, **_: Any) -> None:
        self._rows = service().rows()

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"index": number, "raw_prompt": service().messages(number)}


@register(NAME)
class RowLoop(AgentLoopBase):  # type: ignore[misc]
    """Hands on what the row's agent answers."""

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """A rollout of one row. Raises RolloutFailedError."""
        done = await asyncio.get_running_loop().run_in_executor(_threads(), service().roll_out, int(fields["index"]))
        if done is None:
            raise RolloutFailedError(f"row {fields['index']}")
        sampled_by = fields["global_steps"] - 1  # with maxStaleness 0: the weights after the step before
        answers = sum(before < now for before, now in pairwise([0, *done.mask]))
        return AgentLoopOutput(
            prompt_ids=done.prompt_ids,
            response_ids=done.completion_ids,
            response_mask=done.mask,
            response_logprobs=done.log_probs,
            reward_score=done.reward,
            num_turns=2 * answers,  # a message, and the answer to it
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": sampled_by, "max_global_steps": sampled_by},
        )


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Of rollouts that wait for their agents or their turn: the trainer keeps rollout.maxConcurrent."""
    return ThreadPoolExecutor(max_workers=1024)


class Sender(base.BaseRollout):  # type: ignore[misc]
    """Runs beside the actor, in each of its processes."""

    async def update_weights(self, weights: Iterator[tuple[str, torch.Tensor]], **options: Any) -> None:
        """Sends the weights. Every process takes part, as each tensor is gathered from all; the first writes them."""
        if options.get("peft_config") is not None:
            raise ValueError("only whole weights are sent: set actor_rollout_ref.model.lora.merge to true")
        step = int(options["global_steps"])
        first = torch.distributed.get_rank() == 0
        folder = Path(service().new_folder(step)) if first else Path()
        where: dict[str, str] = {}
        tied = {"lm_head.weight"} if self.model_config.hf_config.tie_word_embeddings else set()  # the embedding again
        dtype = PrecisionType.to_dtype(self.config.dtype)
        for number, tensors in enumerate(_files(weights, dtype, leave_out=tied, keep=first), 1):
            name = f"model-{number:05}.safetensors"
            save_file(tensors, folder / name, {"format": "pt"})
            where |= dict.fromkeys(tensors, name)
        if first:
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
            await asyncio.to_thread(service().send, step)

    async def resume(self, tags: list[str]) -> None:
        """Nothing: the run's vLLM pods share no memory with the actor."""

    async def release(self) -> None:
        """Nothing, likewise."""


def _files(
    weights: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype, *, leave_out: set[str], keep: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors by files, in vLLM's precision; none, but all tensors gathered, where they aren't kept."""
    tensors: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        if name in leave_out or not keep:
            continue
        whole = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        if tensors and size + whole.nbytes > _FILE_BYTES:
            yield tensors
            tensors, size = {}, 0
        tensors[name] = whole
        size += whole.nbytes
    if tensors:
        yield tensors


class NoServers(RolloutReplica):  # type: ignore[misc]
    """verl asks for one replica for each process of the actor; none of these is called."""

    async def launch_servers(self) -> None:
        """Takes a name alone."""
        self._server_address = f"{NAME}-{self.replica_rank}"


base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{Sender.__name__}"  # verl has no other way in
RolloutReplicaRegistry.register(NAME, lambda: NoServers)
