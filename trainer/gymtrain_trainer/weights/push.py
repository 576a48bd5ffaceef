"""One version into one pod by the pull engine: pause, load, label, resume.

The pod is resumed whatever happens in between: a paused vLLM says that it is healthy and answers nothing.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

from gymtrain_api.manifest import PullUpdate
from gymtrain_trainer.weights.errors import PodError, PodRefusedError
from gymtrain_trainer.weights.pod_client import PodClient

_NOT_FOUND = 404


@dataclass(frozen=True)
class Version:
    """A version that pods can fetch."""

    label: str  # run:attempt:number
    source: str  # where a pod finds it: the manifest's URL, or the adapter's folder


class Carrier(Protocol):
    """How one pod is asked and served."""

    async def version(self, client: PodClient) -> str:
        """What the pod says that it holds; PodRefusedError 404 where it can't say."""
        ...

    async def push(self, client: PodClient, version: Version, seconds: float) -> float:
        """Brings `version` into the pod; returns the seconds for which it was paused."""
        ...


class PullCarrier:
    """The pull engine's."""

    async def version(self, client: PodClient) -> str:
        """The label that vLLM itself keeps."""
        return await client.weight_version()

    async def push(self, client: PodClient, version: Version, seconds: float) -> float:
        """Lets the pod fetch and load."""
        return await push(client, version, seconds)


async def push(client: PodClient, version: Version, seconds: float) -> float:
    """Brings `version` into the pod.

    Args:
        client: of the pod.
        version: what to load.
        seconds: that fetching and loading may take.

    Returns:
        Seconds for which the pod was paused.

    Raises:
        PodUnreachableError: the pod is gone, or restarts.
        PodRefusedError: the pod keeps what it had, or ended itself because it can't.
    """
    update = PullUpdate(manifest_url=version.source, version=version.label, timeout_seconds=seconds)
    started = time.monotonic()
    try:
        await client.pause()
        await open_update(client)
        await client.update(update.model_dump(), seconds)
        await client.finish_update(version.label)
        await forget_caches(client)
    except BaseException:  # a cancelled sync too
        await asyncio.shield(resume_quietly(client))
        raise
    await client.resume()
    return time.monotonic() - started


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


async def resume_quietly(client: PodClient) -> None:
    """Ends a pause where the error that led here says more; the repair watcher resumes later what this can't."""
    with contextlib.suppress(PodError):
        await client.resume()
