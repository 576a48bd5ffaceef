"""The memory of a vLLM GPU, and how many rollouts it holds at once."""

import math
from dataclasses import dataclass

from gymtrain_trainer.sizing.shapes import HALF, ModelShape
from gymtrain_trainer.sizing.training import GIB, Needs, Part

UTILIZATION = 0.92  # vLLM 0.32's default of --gpu-memory-utilization
# Activations of a full batch, the sampler's copies of the scores, CUDA graphs: vLLM measures them when it starts.
_RESERVE = 4 * GIB


@dataclass(frozen=True)
class Serving:
    """One vLLM server.

    Attributes:
        tensor_parallel: GPUs that share its weights and its cache.
        pipeline_parallel: stages, each with as many GPUs and its share of the layers.
        gpu_memory: GiB of each.
        utilization: --gpu-memory-utilization.
        length: tokens of a rollout, prompt and answers together.
        number: bytes of a weight.
        adapters: bytes of all adapters that it holds.
        syncs: it takes part in NCCL syncs.
    """

    shape: ModelShape
    tensor_parallel: int = 1
    gpu_memory: float = 80.0
    utilization: float = UTILIZATION
    length: int = 8192
    number: int = HALF
    adapters: int = 0
    syncs: bool = True
    pipeline_parallel: int = 1

    @property
    def divides(self) -> bool:
        """Whether vLLM takes this many GPUs: they share the heads evenly."""
        return self.shape.heads % self.tensor_parallel == 0

    @property
    def cache(self) -> int:
        """Bytes of one GPU that are left for the key-value cache; negative where not even the weights fit."""
        fixed = sum(part.bytes for part in self._fixed())
        return int(self.utilization * self.gpu_memory * GIB) - fixed

    @property
    def rollouts(self) -> int:
        """Rollouts of `length` tokens that are in the cache at once, without shared prompts."""
        return max(0, self.cache) // (self._token_bytes * self.length)

    @property
    def _token_bytes(self) -> int:
        return math.ceil(self.shape.kv_bytes(self.tensor_parallel) / self.pipeline_parallel)

    def _fixed(self) -> tuple[Part, ...]:
        gpus = self.tensor_parallel * self.pipeline_parallel
        share = (self.number * self.shape.parameters + self.adapters) // gpus
        return (
            Part("weights", share, f"{'bf16' if self.number == HALF else 'float32'}, 1/{gpus}"),
            Part("reserve", _RESERVE, "activations, sampling, CUDA graphs"),
        )

    def needs(self) -> Needs:
        """Of one GPU: what has to fit into vLLM's part of it, with the cache of one rollout."""
        one = self._token_bytes * self.length
        parts = (*self._fixed(), Part("cache of one rollout", one, f"{self.length} tokens"))
        return Needs("vLLM GPU", parts, int(self.utilization * self.gpu_memory * GIB))

    @property
    def fits(self) -> bool:
        """Whether it serves at least one rollout, and has room beside for the buffers of a sync."""
        beside = (1 - self.utilization) * self.gpu_memory * GIB
        buffers = 2 * self.shape.largest_message if self.syncs else 0
        return self.divides and self.rollouts > 0 and buffers <= beside
