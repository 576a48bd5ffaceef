"""The transport `None`: vLLM keeps the weights that it started with. For evaluation, where the spec says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_trainer.weights.pods.client import PodClient
from gymtrain_trainer.weights.transports.transport import Delivered, Transport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.transport import NamedTensors


class NoTransport(Transport):
    """Sends nothing. Every pod that answers counts as holding the current version."""

    name: TransportName = "None"
    mends = False
    compares = False

    def __init__(self) -> None:
        self._current = 0

    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> None:
        """Reads the tensors, which is a collective of a sharded model, and drops them."""
        for _ in tensors:
            pass
        self._current = number
        self.thread.run(self.fleet.versions())
        delivered(Delivered())

    async def label(self, client: PodClient) -> str:
        """The current version, of every pod that is healthy."""
        await client.health()
        return self.fleet.settings.version(self._current)
