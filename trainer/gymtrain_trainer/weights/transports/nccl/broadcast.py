"""One broadcast into one NCCL group: its deadline, and what is left of it when it fails.

NCCL itself waits forever, and so would the run: a collective that outlives its deadline is aborted, and where that
does not help the process ends, so that a new attempt can start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.weights.errors import PodError
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient
from gymtrain_trainer.weights.transports.nccl.group import NcclGroup
from gymtrain_trainer.weights.transports.nccl.packing import Packer, SendMessage

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_DISOWN_SECONDS = 10.0
_GRACE_SECONDS = 60.0  # between the abort and the end of the process


@contextmanager
def deadline(
    seconds: float, abort: Callable[[str], None], what: str, end: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """Calls `abort` from a thread of its own once `seconds` are over; ends the process where that doesn't help."""
    reason = f"{what} took longer than {seconds:.0f} s (spec.weightSync.timeoutSeconds)"

    def last_resort() -> None:
        logger.critical("%s and could not be aborted: this process ends, so that a new attempt can start", reason)
        logging.shutdown()
        end(int(ExitCode.RETRY))

    timers = [threading.Timer(seconds, abort, [reason]), threading.Timer(seconds + _GRACE_SECONDS, last_resort)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


class Broadcast:
    """One version to paused pods."""

    def __init__(self, group: NcclGroup, packer: Packer, seconds: float) -> None:
        """`seconds`: deadline of all of it."""
        self._group = group
        self._packer = packer
        self._seconds = seconds
        self._updates: list[Future[None]] = []

    def send(self, write: Callable[[SendMessage], None], label: str) -> None:
        """Returns once every pod holds the tensors and carries `label`.

        `write`: hands all messages of the packer to what it is given, in their order.

        Raises:
            PodError: a pod refused or was lost.
            WeightSyncError: NCCL failed or was aborted, or the model is not the announced one.
        """
        communicator = self._group.communicator
        with deadline(self._seconds, communicator.abort, "the weight sync"):
            # The first message is packed while the pods make ready.
            opened = [self._group.thread.submit(_open(member.client)) for member in self._group.members]

            def broadcast(message: torch.Tensor) -> None:
                if not self._updates:
                    for ready in opened:
                        ready.result(self._seconds)
                    self._announce()
                communicator.broadcast(message)

            write(broadcast)
            communicator.wait()
            for update in self._updates:
                update.result(self._seconds)
            self._group.on_all(lambda client: client.finish_update(label))

    def disown(self) -> None:
        """Removes the label from pods that may hold half an update, then lets them continue: they get no traffic."""

        async def disown(client: PodClient) -> None:
            with contextlib.suppress(TimeoutError):  # a worker that waits in the broadcast answers nothing
                async with asyncio.timeout(_DISOWN_SECONDS):
                    with contextlib.suppress(PodError):
                        await client.relabel(UNSYNCED)  # no such route before 0.27: there the label is our own note
                    with contextlib.suppress(PodError):
                        await client.finish_update()
                    await client.resume_quietly()

        self._group.on_all(disown)

    def _announce(self) -> None:
        """Lets every pod wait for the broadcast; one that can't ends it for all."""
        for member in self._group.members:
            update = member.client.update(member.update_info(self._packer.tensors), self._seconds)
            self._updates.append(self._group.thread.submit(update))
        for waiting in self._updates:
            waiting.add_done_callback(self._abort_if_failed)

    def _abort_if_failed(self, update: Future[None]) -> None:
        if not update.cancelled() and (error := update.exception()) is not None:
            self._group.communicator.abort(str(error))


async def _open(client: PodClient) -> None:
    # Nothing computes new caches before the pause ends: one round trip for both.
    await asyncio.gather(client.forget_caches(), client.open_update())
