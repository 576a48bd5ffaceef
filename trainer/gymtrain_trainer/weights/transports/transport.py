"""How weights leave the trainer: what `WeightSync` asks of each transport.

    main thread of rank 0      prepare, once; pause ─► send ─► resume, for each sync; resend, between syncs
    the thread of the pods     label, push, look

A transport knows how a version is made ready and how a pod takes it. Which number a version has, what is repaired, when
parity is checked and what is reported of all that is for `WeightSync` to know; which pods there are and what is tried
again, for the fleet. Nothing here calls back up.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.event_loop_thread import EventLoopThread
from gymtrain_trainer.weights.pods.client import PodClient, PublishedVersion, VllmPod
from gymtrain_trainer.weights.pods.fleet import Fleet, Outcome

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

type NamedTensors = Iterator[tuple[str, torch.Tensor]]
type Parameters = Callable[[], NamedTensors]  # the model's, under the checkpoint's names; read without gathering


@dataclass(frozen=True)
class Delivered:
    """A version that the pods hold, and how it came to them."""

    pods: Sequence[VllmPod] = ()
    bytes: int = 0  # what a pod fetches that holds the version before
    seconds: float = 0.0
    staged_seconds: float = 0.0  # of these, until the weights lay ready
    fetched_seconds: float = 0.0  # from then until the last pod had them, and was paused
    paused_seconds: float = 0.0  # the longest pause of a pod
    retries: int = 0
    unreachable: Sequence[VllmPod] | None = None  # None: nobody looked

    @classmethod
    def by(cls, outcome: Outcome, size: int, started: float, staged: float) -> Delivered:
        """By a push to each pod, of a sync that began at `started` and whose weights lay ready at `staged`."""
        return cls(
            pods=list(outcome.done),
            bytes=size,
            seconds=time.monotonic() - started,
            staged_seconds=staged - started,
            paused_seconds=max(outcome.done.values()),
            retries=outcome.retries,
            unreachable=list(outcome.unreachable),
        )


class Transport(ABC):
    """One way from the trainer's tensors to every vLLM pod of the run. Rank 0 only."""

    name: TransportName
    overlaps = False  # `send` may return while pods load: where rollouts may be of earlier versions
    pauses = False  # no pod generates from `pause` to `resume`
    mends = True  # `push` brings a version to a pod at any time
    compares = True  # vLLM is to compute what the trainer computes

    fleet: Fleet
    thread: EventLoopThread

    def attach(self, fleet: Fleet, thread: EventLoopThread) -> None:
        """Once, before anything else: the pods, and the thread in which they are talked to."""
        self.fleet, self.thread = fleet, thread

    # On the main thread.

    def prepare(self) -> None:
        """Makes ready for the first sync."""
        return

    def pause(self) -> None:
        """Stops generation, where the transport needs that before weights are gathered."""
        return

    @abstractmethod
    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> Future[Any] | None:
        """Brings the tensors to every pod that answers, as version `number`; reads them to their end.

        Args:
            number: of the version.
            tensors: name and full tensor.
            delivered: called when the pods hold the version, from any thread, while the fleet's lock is held.

        Returns:
            What is still under way, where the transport overlaps with what comes next; None if all is done.

        Raises:
            WeightsError: no pod holds the version for sure.
        """

    def withdraw(self, number: int) -> None:
        """What `send` left under way has failed: no pod is to hold this version."""
        return

    def resume(self) -> None:
        """Lets generation continue."""
        return

    @property
    def paused_seconds(self) -> float:
        """For how long the transport stopped generation last."""
        return 0.0

    @property
    def wants_resend(self) -> bool:
        """Whether a pod waits for weights that only the main thread can send."""
        return False

    def resend(self) -> list[VllmPod]:
        """Sends the current version again; returns the pods that had lost it."""
        return []

    def close(self) -> None:
        """Releases what it holds. The pods keep what they have."""
        return

    # For the parity check.

    def asked_as(self, number: int) -> str:
        """The name that a request asks for to be answered by version `number`."""
        return SERVED_MODEL_NAME

    # In the thread of the pods.

    async def label(self, client: PodClient) -> str:
        """What a pod says that it holds.

        Raises:
            PodRefusedError: with status 404, it can't say.
        """
        return await client.weight_version()

    def published(self, number: int) -> PublishedVersion:
        """Where pods find a version that is not withdrawn. For transports that mend."""
        raise NotImplementedError

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Brings a version into one pod; returns the seconds for which it was paused. For transports that mend."""
        raise NotImplementedError

    async def look(self) -> dict[VllmPod, str | None] | None:
        """A round of the watcher, for transports that do not mend: what each pod holds; None if a sync came between."""
        return await self.fleet.versions()


@dataclass(frozen=True)
class ChosenTransport:
    """The transport of a run, and why this one."""

    transport: Transport
    reason: str = ""
    dtype: str | None = None  # of the weights in vLLM
