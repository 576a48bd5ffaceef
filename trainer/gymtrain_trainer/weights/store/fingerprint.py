"""Whether a model's weights are still those that were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gymtrain_trainer.internals import writes_of

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.protocol import NamedTensors


@dataclass(frozen=True)
class Fingerprint:
    """How often each tensor was written to."""

    writes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: NamedTensors) -> Fingerprint | None:
        """Now; None for a model of which this process holds only its share."""
        from torch.distributed.tensor import DTensor

        writes = []
        for _, tensor in tensors:
            if isinstance(tensor, DTensor):
                return None
            writes.append(writes_of(tensor))
        return cls(tuple(writes))
