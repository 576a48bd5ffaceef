"""The transport `None`: vLLM keeps the weights that it started with. For evaluation, where the spec says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_trainer.weights.pods.client import PodClient, PublishedVersion
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.transports.base import PodTransport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.protocol import NamedTensors


class NoTransport(PodTransport):
    """TRL's WeightTransferProtocol; sends nothing. Every pod that answers counts as current."""

    name: TransportName = "None"

    def __init__(
        self, settings: SyncSettings, *, reason: str = "", observer: Callable[[SyncEvent], None] | None = None
    ) -> None:
        """Starts nothing yet."""
        super().__init__(settings, _Constant(self), reason=reason, observer=observer)

    def init_weight_transfer(self) -> None:
        """Starts the watcher."""
        self._start()

    def pause(self) -> None:
        """Nothing."""

    def send_weights(self, iterator: NamedTensors) -> None:
        """Reads the tensors, which is a collective of a sharded model, and drops them."""
        for _ in iterator:
            pass
        self.numbers.current = self.numbers.next()
        self._start().run(self._versions())
        self.stats.synced(0, 0.0, 0.0, 0.0)
        self._observer(SyncEvent("sync", self.settings.version(self.numbers.current)))

    def resume(self) -> None:
        """Nothing."""

    async def _look(self) -> None:
        await self._versions()


class _Constant:
    """Calls every healthy pod's weights the current version."""

    def __init__(self, transport: NoTransport) -> None:
        self._transport = transport

    async def version(self, client: PodClient) -> str:
        await client.health()
        return self._transport.current_version or self._transport.settings.version(0)

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        return 0.0
