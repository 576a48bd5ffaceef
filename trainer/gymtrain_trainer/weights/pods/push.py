"""One version into one pod by the pull engine: fetch, pause, load, label, resume.

The pod may begin to fetch while the trainer still writes: it generates meanwhile, and is paused only to load. It is
resumed whatever happens in between: a paused vLLM says that it is healthy and answers nothing.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gymtrain_api.manifest import PullUpdate
from gymtrain_trainer.weights.errors import PodError, PodRefusedError
from gymtrain_trainer.weights.pods.client import PodClient
from gymtrain_trainer.weights.pods.hosts import VllmPod

_NOT_FOUND = 404
UNSYNCED = "default"  # what vLLM calls the weights that it started with


@dataclass(frozen=True)
class PublishedVersion:
    """A version that pods can fetch."""

    label: str  # run:attempt:number
    source: str  # where a pod finds it: the manifest's URL, or the adapter's folder


class Carrier(Protocol):
    """How one pod is asked and served."""

    async def version(self, client: PodClient) -> str:
        """What the pod says that it holds; PodRefusedError 404 where it can't say."""
        ...

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Brings `version` into the pod; returns the seconds for which it was paused."""
        ...


class PullCarrier:
    """The pull engine's."""

    def __init__(self) -> None:
        self._begun: dict[VllmPod, PublishedVersion] = {}  # what pods fetch already

    async def version(self, client: PodClient) -> str:
        """The label that vLLM itself keeps."""
        return await client.weight_version()

    async def begin(self, client: PodClient, version: PublishedVersion, seconds: float) -> None:
        """Lets the pod fetch what is still being written; it goes on generating until `push`.

        Raises:
            PodError: it doesn't. `push` asks it for all.
        """
        self._begun.pop(client.pod, None)
        await open_update(client)
        await client.update(_update(version, seconds, "fetch"), seconds)
        self._begun[client.pod] = version

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Lets the pod load what it fetched; fetch first, where it did not begin."""
        begun = self._begun.pop(client.pod, None) == version
        return await push(client, version, seconds, begun=begun)


async def push(client: PodClient, version: PublishedVersion, seconds: float, *, begun: bool = False) -> float:
    """Brings `version` into the pod.

    Args:
        client: of the pod.
        version: what to load.
        seconds: that fetching and loading may take.
        begun: the update is open, and the pod fetches already.

    Returns:
        Seconds for which the pod was paused.

    Raises:
        PodUnreachableError: the pod is gone, or restarts.
        PodRefusedError: the pod keeps what it had, or ended itself because it can't.
    """
    started = time.monotonic()
    try:
        await client.pause()
        if not begun:
            await open_update(client)
        await forget_caches(client)  # nothing computes new ones before the pause ends
        await client.update(_update(version, seconds, "load"), seconds)
        await client.finish_update(version.label)
    except PodRefusedError:
        await asyncio.shield(resume_quietly(client))
        raise
    except BaseException:  # a cancelled sync too
        await asyncio.shield(_disown(client))
        raise
    await client.resume()
    return time.monotonic() - started


def _update(version: PublishedVersion, seconds: float, step: Literal["fetch", "load"]) -> dict[str, Any]:
    update = PullUpdate(manifest_url=version.source, version=version.label, timeout_seconds=seconds, step=step)
    return update.model_dump()


async def open_update(client: PodClient) -> None:
    """Opens an update, closing one that a killed trainer left."""
    try:
        await client.start_update()
    except PodRefusedError:
        # "already active": left by a trainer that was killed in the middle. Closing it loads nothing.
        await client.finish_update()
        await client.start_update()


async def forget_caches(client: PodClient) -> None:
    """Before 0.26 a pause that keeps requests keeps their caches too, computed by the old weights."""
    try:
        await client.reset_prefix_cache()
    except PodRefusedError as error:
        if error.status != _NOT_FOUND:
            raise


async def _disown(client: PodClient) -> None:
    """Resumes a pod of which nobody knows what it holds; without its label it gets no traffic."""
    with contextlib.suppress(PodError):  # no such route before 0.28: there the label is our own note
        await client.relabel(UNSYNCED)
    await resume_quietly(client)


async def resume_quietly(client: PodClient) -> None:
    """Ends a pause where the error that led here says more; the repair watcher resumes later what this can't."""
    with contextlib.suppress(PodError):
        await client.resume()
