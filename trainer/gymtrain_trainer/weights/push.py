"""One version into one pod: pause, load, label, resume.

The pod is resumed whatever happens in between: a paused vLLM says that it is healthy and answers nothing.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from gymtrain_api.manifest import PullUpdate
from gymtrain_trainer.weights.errors import PodError, PodRefusedError
from gymtrain_trainer.weights.pod_client import PodClient

_NOT_FOUND = 404


@dataclass(frozen=True)
class Version:
    """A staged version."""

    label: str  # run:attempt:number
    manifest_url: str


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
    update = PullUpdate(manifest_url=version.manifest_url, version=version.label, timeout_seconds=seconds)
    started = time.monotonic()
    try:
        await client.pause()
        await _open_update(client)
        await client.update(update.model_dump(), seconds)
        await client.finish_update(version.label)
        await _forget_caches(client)
    except BaseException:  # a cancelled sync too
        await asyncio.shield(_resume_quietly(client))
        raise
    await client.resume()
    return time.monotonic() - started


async def _open_update(client: PodClient) -> None:
    try:
        await client.start_update()
    except PodRefusedError:
        # "already active": left by a trainer that was killed in the middle. Closing it loads nothing.
        await client.finish_update()
        await client.start_update()


async def _forget_caches(client: PodClient) -> None:
    """Before 0.26 a pause that keeps requests keeps their caches too, computed by the old weights."""
    try:
        await client.reset_prefix_cache()
    except PodRefusedError as error:
        if error.status != _NOT_FOUND:
            raise


async def _resume_quietly(client: PodClient) -> None:
    with contextlib.suppress(PodError):  # the error that led here says more, and the repair watcher resumes later
        await client.resume()
