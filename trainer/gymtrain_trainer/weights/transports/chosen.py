"""A transport that is chosen late: TRL wants one when its trainer is made, before the vLLM servers are up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncStats
from gymtrain_trainer.weights.transports.choice import TransportNeeds, make_transport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.protocol import NamedTensors, WeightTransport


class ChosenTransport:
    """A `WeightTransport` that is settled by `settle`, at the latest by TRL's first call."""

    def __init__(self, settings: SyncSettings, needs: TransportNeeds) -> None:
        """Asks nobody yet. The store answers `GET /weights/held` for it from now on."""
        self.settings = settings
        self.stats = SyncStats()
        self._needs = needs
        self._lock = threading.Lock()
        self._chosen: WeightTransport | None = None
        needs.store.held = self.held

    def settle(self) -> WeightTransport:
        """The transport; asks the servers the first time.

        Raises:
            NoServersError: none answers in time.
            TransportRefusedError: none of the transports works with them.
        """
        with self._lock:
            if self._chosen is None:
                self._chosen = make_transport(self.settings, self._needs)
                self._chosen.stats = self.stats
            return self._chosen

    @property
    def name(self) -> str:
        """Of the transport; empty before it is settled."""
        return self._chosen.name if self._chosen is not None else ""

    @property
    def reason(self) -> str:
        """Why this one; empty before it is settled."""
        return self._chosen.reason if self._chosen is not None else ""

    @property
    def current_version(self) -> str | None:
        """Label of the version that was sent last; None before the first sync."""
        return self._chosen.current_version if self._chosen is not None else None

    def init_weight_transfer(self) -> None:
        """As the transport does."""
        self.settle().init_weight_transfer()

    def pause(self) -> None:
        """As the transport does."""
        self.settle().pause()

    def send_weights(self, iterator: NamedTensors) -> None:
        """As the transport does."""
        self.settle().send_weights(iterator)

    def resume(self) -> None:
        """As the transport does."""
        self.settle().resume()

    def destroy(self) -> None:
        """As the transport does, where there is one."""
        if self._chosen is not None:
            self._chosen.destroy()
        self._needs.store.clear()

    async def pod_versions(self) -> dict[str, str | None]:
        """As the transport does; no pods before it is settled."""
        return await self._chosen.pod_versions() if self._chosen is not None else {}

    def held(self) -> WeightsHeld:
        """As the transport does; nothing before it is settled."""
        return self._chosen.held() if self._chosen is not None else WeightsHeld()

    @property
    def wants_resend(self) -> bool:
        """As the transport does."""
        return self._chosen is not None and self._chosen.wants_resend

    def resend(self) -> None:
        """As the transport does, where there is one."""
        if self._chosen is not None:
            self._chosen.resend()
