"""What every weight transport meets: TRL's five methods, and what the rest of the trainer asks.

TRL (AsyncGRPOTrainer's `weight_transfer`) calls from the main thread of rank 0: `init_weight_transfer` once, then
`pause`, `send_weights`, `resume` for each sync, `destroy` at the end. Once `send_weights` has returned, every vLLM pod
that answers holds the new version, and so does every one that gets traffic. Where rollouts may be of earlier versions,
a transport may return sooner, when the tensors may change again: then the next sync waits for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.stats import SyncStats

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

type NamedTensors = Iterator[tuple[str, torch.Tensor]]
type Parameters = Callable[[], NamedTensors]  # the model's, under the checkpoint's names; read without gathering


class WeightTransport(Protocol):
    """One way from the trainer's tensors to every vLLM pod of the run."""

    name: TransportName
    reason: str  # why this one
    stats: SyncStats

    @property
    def current_version(self) -> str | None:
        """Label of the version that was sent last; None before the first sync."""
        ...

    def init_weight_transfer(self) -> None:
        """Makes ready for the first sync."""
        ...

    def pause(self) -> None:
        """Stops generation, where the transport needs that before weights are gathered."""
        ...

    def send_weights(self, iterator: NamedTensors) -> None:
        """Brings the tensors to every pod, under the next version; reads the iterator to its end."""
        ...

    def resume(self) -> None:
        """Lets generation go on."""
        ...

    def destroy(self) -> None:
        """Releases threads, connections and disk. The pods keep what they have."""
        ...

    async def pod_versions(self) -> dict[str, str | None]:
        """What each pod holds now, by URL; None where it doesn't answer. From any event loop."""
        ...

    def held(self) -> WeightsHeld:
        """The version that pods are to hold, and what each holds by the last look. From any thread, at once."""
        ...

    @property
    def wants_resend(self) -> bool:
        """Whether a pod waits for weights that only the main thread can send, or a sync failed after `send_weights`
        returned: call `resend` while the main thread is idle."""
        ...

    def resend(self) -> None:
        """Sends the current version to pods that lost it. Main thread of rank 0, between syncs.

        Raises:
            WeightsError: what a sync failed with after `send_weights` returned.
        """
        ...
