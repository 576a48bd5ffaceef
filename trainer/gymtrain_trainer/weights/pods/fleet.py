"""All vLLM pods of the run, level-based: whatever their state, bring them to one version.

A pod that doesn't answer is not waited for while others do: it holds no weights of this attempt when it comes up, so it
gets no traffic until the watcher has brought it to the current version.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from gymtrain_trainer.weights.errors import (
    NoServersError,
    PodError,
    PodRefusedError,
    PodUnreachableError,
    WeightSyncError,
)
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient, PublishedVersion, VllmPod, find_pods
from gymtrain_trainer.weights.sync_settings import SyncSettings

_TRIES = 3  # of a pod that answers with errors
_AGAIN_SECONDS = 1.0
_BEGIN_SECONDS = 10.0  # for which a pod that does not say whether it fetches is waited for
_NOT_FOUND = 404
_UNFIT = "doesn't fit the model"  # of the plugin's LoadError: trying again can't help


class Carrier(Protocol):
    """How one pod is asked and served; each transport has its own."""

    async def label(self, client: PodClient) -> str:
        """What the pod says that it holds; PodRefusedError 404 where it can't say."""
        ...

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Brings `version` into the pod; returns the seconds for which it was paused."""
        ...


@dataclass
class Outcome:
    """What became of one sync."""

    done: dict[VllmPod, float] = field(default_factory=dict)  # seconds of the pause
    unreachable: dict[VllmPod, str] = field(default_factory=dict)
    refused: dict[VllmPod, str] = field(default_factory=dict)
    retries: int = 0


class Fleet:
    """Calls to all pods; lives in one event loop."""

    def __init__(
        self,
        settings: SyncSettings,
        session: aiohttp.ClientSession,
        carrier: Carrier,
        find: Callable[[str, int], Awaitable[list[VllmPod]]] = find_pods,
    ) -> None:
        self.settings = settings
        self.lock = asyncio.Lock()  # of who changes what pods hold: one sync or repair at a time
        self._session = session
        self._carrier = carrier
        self._find = find
        self.known: dict[VllmPod, str] = {}  # by the last look or push; also for releases that can't say it
        self._changes: Counter[VllmPod] = Counter()  # of what we know, by pushes

    async def pods(self) -> list[VllmPod]:
        """All pods that DNS knows now."""
        return await self._find(self.settings.pods_host, self.settings.pods_port)

    def client(self, pod: VllmPod) -> PodClient:
        """Client of one pod."""
        return PodClient(self._session, pod)

    async def bring(
        self, version: PublishedVersion, seconds: float, begun: Mapping[VllmPod, asyncio.Task[None]] | None = None
    ) -> Outcome:
        """Pushes `version` to every pod, all at once, until each has it or doesn't answer, and at least one has it.

        Args:
            version: what they are to hold.
            seconds: deadline of all of it.
            begun: pods found already, each with the call that lets it begin to fetch; None asks DNS first.

        Raises:
            NoServersError: no pod answered in time.
            WeightSyncError: a pod answered, but doesn't take the weights.
        """
        deadline = time.monotonic() + seconds
        outcome = Outcome()
        tries: Counter[VllmPod] = Counter()
        waiting = dict(begun or {})
        while True:
            pods = list(waiting) or await self.pods()
            open_pods = [pod for pod in pods if pod not in outcome.done]
            await asyncio.gather(
                *(self._try(pod, version, deadline, outcome, tries, waiting.pop(pod, None)) for pod in open_pods)
            )
            present = set(pods)
            refused = {pod: text for pod, text in outcome.refused.items() if pod in present}
            final = {pod for pod in refused if tries[pod] >= _TRIES or _UNFIT in refused[pod]}
            if final:
                raise WeightSyncError("; ".join(sorted(refused[pod] for pod in final)))
            if outcome.done and not refused:
                return outcome
            if time.monotonic() + _AGAIN_SECONDS >= deadline:
                raise _too_late(outcome, pods, seconds, self.settings)
            outcome.retries += len(refused)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _try(
        self,
        pod: VllmPod,
        version: PublishedVersion,
        deadline: float,
        outcome: Outcome,
        tries: Counter[VllmPod],
        begun: asyncio.Task[None] | None,
    ) -> None:
        outcome.refused.pop(pod, None)
        outcome.unreachable.pop(pod, None)
        try:
            if not await _answered(begun):
                await self.client(pod).health()  # a pod that starts refuses connections: cheaper to learn here
            tries[pod] += 1
            outcome.done[pod] = await self._push(pod, version, max(1.0, deadline - time.monotonic()))
        except PodUnreachableError as error:
            outcome.unreachable[pod] = str(error)
        except PodRefusedError as error:
            outcome.refused[pod] = str(error)

    async def versions(self) -> dict[VllmPod, str | None]:
        """What each pod says that it holds; None if it doesn't answer."""
        pods = await self.pods()
        found = dict(zip(pods, await asyncio.gather(*map(self._version, pods)), strict=True))
        for pod in self.known.keys() - found.keys():
            self.known.pop(pod, None)
            self._changes.pop(pod, None)
        return found

    async def _version(self, pod: VllmPod) -> str | None:
        changes = self._changes[pod]
        try:
            label = await self._carrier.label(self.client(pod))
        except PodRefusedError as error:
            return self.known.get(pod, UNSYNCED) if error.status == _NOT_FOUND else None
        except PodError:
            self.known.pop(pod, None)  # it may be restarting
            return None
        if changes == self._changes[pod]:  # else a push ended meanwhile: the answer may be from before it
            self.known[pod] = label
        return label

    async def _push(self, pod: VllmPod, version: PublishedVersion, seconds: float) -> float:
        try:
            paused = await self._carrier.push(self.client(pod), version, seconds)
        except PodError:
            self.known.pop(pod, None)  # until it is asked again: it may hold either
            raise
        finally:
            self._changes[pod] += 1
        self.known[pod] = version.label
        return paused

    async def repair(
        self, version: PublishedVersion, seconds: float
    ) -> tuple[dict[VllmPod, str | None], dict[VllmPod, str]]:
        """One look at all pods: those with other weights get `version`, those left paused are resumed.

        Returns:
            What the pods held before, and the errors of the pods that could not be repaired.
        """
        held = await self.versions()
        wrong = [pod for pod, label in held.items() if label is not None and label != version.label]
        right = [pod for pod, label in held.items() if label == version.label]
        errors: dict[VllmPod, str] = {}

        async def mend(pod: VllmPod) -> None:
            try:
                await self._push(pod, version, seconds)
            except PodError as error:
                errors[pod] = str(error)

        await asyncio.gather(*map(mend, wrong), self.unpause(right))
        return held, errors

    async def unpause(self, pods: Iterable[VllmPod]) -> None:
        """Resumes pods that were left paused."""
        await asyncio.gather(*map(self._unpause, pods))

    async def _unpause(self, pod: VllmPod) -> None:
        client = self.client(pod)
        try:
            if await client.is_paused():
                await client.resume()
        except PodError:
            pass  # the next look finds it again


async def _answered(begun: asyncio.Task[None] | None) -> bool:
    """Whether the pod began to fetch."""
    if begun is None:
        return False
    try:
        await asyncio.wait_for(begun, _BEGIN_SECONDS)
    except (PodError, TimeoutError):
        return False
    return True


def _too_late(outcome: Outcome, pods: list[VllmPod], seconds: float, settings: SyncSettings) -> Exception:
    """Why it was not finished before the deadline."""
    if outcome.refused:
        return WeightSyncError(f"not done in {seconds:.0f} s: {'; '.join(sorted(outcome.refused.values()))}")
    seen = "; ".join(sorted(outcome.unreachable[pod] for pod in pods if pod in outcome.unreachable))
    return NoServersError(
        f"no vLLM pod took the weights in {seconds:.0f} s: {seen or f'{settings.pods_host} has no address'}"
    )
