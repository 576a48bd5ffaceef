"""One broadcast into one group, and what is left of it when it fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from gymtrain_trainer.weights.errors import PodError, WeightSyncError
from gymtrain_trainer.weights.event_loop_thread import Background
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient
from gymtrain_trainer.weights.transports.nccl.group import NcclGroup
from gymtrain_trainer.weights.transports.nccl.packing import Packer
from gymtrain_trainer.weights.transports.nccl.watchdog import deadline

if TYPE_CHECKING:
    import torch

    from gymtrain_trainer.weights.transports.protocol import NamedTensors

_DISOWN_SECONDS = 10.0


def on_all(background: Background, group: NcclGroup, call: Callable[[PodClient], Coroutine[Any, Any, None]]) -> None:
    """One call to every pod of the group, all at once.

    Raises:
        WeightSyncError: one of them failed.
    """

    async def calls() -> None:
        await asyncio.gather(*(call(member.client) for member in group.members))

    try:
        background.run(calls())
    except PodError as error:
        raise WeightSyncError(str(error)) from error


class Broadcast:
    """One version to paused pods."""

    def __init__(self, group: NcclGroup, packer: Packer, background: Background, seconds: float) -> None:
        """`seconds`: deadline of all of it."""
        self._group = group
        self._packer = packer
        self._background = background
        self._seconds = seconds
        self._updates: list[Future[None]] = []

    def send(self, iterator: NamedTensors, label: str) -> None:
        """Returns once every pod holds the tensors and carries `label`.

        Raises:
            PodError: a pod refused or was lost.
            WeightSyncError: NCCL failed or was aborted, or the model is not the announced one.
        """
        communicator = self._group.communicator
        with deadline(self._seconds, communicator.abort, "the weight sync"):
            # The first message is packed while the pods make ready.
            opened = [self._background.submit(_open(member.client)) for member in self._group.members]

            def broadcast(message: torch.Tensor) -> None:
                if not self._updates:
                    for ready in opened:
                        ready.result(self._seconds)
                    self._announce()
                communicator.broadcast(message)

            self._packer.send(iterator, broadcast)
            communicator.wait()
            for update in self._updates:
                update.result(self._seconds)
            on_all(self._background, self._group, lambda client: client.finish_update(label))

    def disown(self) -> None:
        """Takes the label from pods that may hold half an update, then lets them go on: they get no traffic."""

        async def disown(client: PodClient) -> None:
            with contextlib.suppress(TimeoutError):  # a worker that waits in the broadcast answers nothing
                async with asyncio.timeout(_DISOWN_SECONDS):
                    with contextlib.suppress(PodError):
                        await client.relabel(UNSYNCED)  # no such route before 0.28: there the label is our own note
                    with contextlib.suppress(PodError):
                        await client.finish_update()
                    await client.resume_quietly()

        on_all(self._background, self._group, disown)

    def _announce(self) -> None:
        """Lets every pod wait for the broadcast; one that can't ends it for all."""
        for member in self._group.members:
            update = member.client.update(member.update_info(self._packer.tensors), self._seconds)
            self._updates.append(self._background.submit(update))
        for waiting in self._updates:
            waiting.add_done_callback(self._abort_if_failed)

    def _abort_if_failed(self, update: Future[None]) -> None:
        if not update.cancelled() and (error := update.exception()) is not None:
            self._group.communicator.abort(str(error))


async def _open(client: PodClient) -> None:
    # Nothing computes new caches before the pause ends: one round trip for both.
    await asyncio.gather(client.forget_caches(), client.open_update())
