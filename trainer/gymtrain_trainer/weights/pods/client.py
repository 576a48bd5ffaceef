"""One vLLM pod: its address, its control routes, and one version into it by the pull engine.

A version goes into a pod by five steps: fetch, pause, load, label, resume. The pod may begin to fetch while the trainer
still writes: it generates meanwhile, and is paused only to load. It is resumed whatever happens in between: a paused
vLLM says that it is healthy and answers nothing.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from gymtrain_api.manifest import PullUpdate
from gymtrain_trainer.dns import pod_urls
from gymtrain_trainer.weights.errors import PodError, PodRefusedError, PodUnreachableError

UNSYNCED = "default"  # what vLLM calls the weights that it started with

_ASK_SECONDS = 10.0
_CONTROL_SECONDS = 120.0  # pausing waits for the engine's step, which is slow on CPUs
_CONNECT_SECONDS = 5.0
# A connection for each call: after an error vLLM's server closes it unannounced, and the next call on it would be lost.
_HEADERS = {"Connection": "close"}
_TEXT_LIMIT = 2000  # characters of a server's error kept
_NOT_FOUND = 404


@dataclass(frozen=True, order=True)
class VllmPod:
    """One vLLM server."""

    url: str  # http://ADDRESS:PORT


async def find_pods(host: str, port: int) -> list[VllmPod]:
    """All pods behind a headless Service, sorted; none while it has no address."""
    return [VllmPod(url) for url in await pod_urls(host, port)]


@dataclass(frozen=True)
class PublishedVersion:
    """A version that pods can fetch."""

    label: str  # run:attempt:number
    source: str  # where a pod finds it: the manifest's URL, or the adapter's folder


class PodClient:
    """Calls one pod.

    Every public method but `resume_quietly` raises PodUnreachableError or PodRefusedError.
    """

    def __init__(self, session: aiohttp.ClientSession, pod: VllmPod) -> None:
        self._session = session
        self.pod = pod

    async def health(self) -> None:
        """Returns if the server is up.

        Raises:
            PodUnreachableError: it isn't. Once its engine has died it still refuses, for some seconds until it ends.
        """
        try:
            await self._call("GET", "/health", _ASK_SECONDS, as_json=False)
        except PodRefusedError as error:
            raise PodUnreachableError(str(error)) from error

    async def weight_version(self) -> str:
        """What the server says that it holds: "default" from its start until the first sync."""
        return str((await self._call("GET", "/weight_info", _ASK_SECONDS))["weight_version"])

    async def is_paused(self) -> bool:
        """Whether generation is paused."""
        return bool((await self._call("GET", "/is_paused", _ASK_SECONDS))["is_paused"])

    async def openapi(self) -> dict[str, Any]:
        """The server's own description."""
        return dict(await self._call("GET", "/openapi.json", _CONTROL_SECONDS))

    async def server_info(self) -> dict[str, Any]:
        """The server's resolved settings."""
        return dict(await self._call("GET", "/server_info?config_format=json", _CONTROL_SECONDS))

    async def pause(self) -> None:
        """Freezes open requests and clears their caches: they continue with the next weights."""
        await self._call("POST", "/pause?mode=keep&clear_cache=true", _CONTROL_SECONDS)

    async def resume(self) -> None:
        """Ends a pause."""
        await self._call("POST", "/resume", _CONTROL_SECONDS)

    async def start_update(self) -> None:
        """Opens an update."""
        await self._call("POST", "/start_weight_update", _CONTROL_SECONDS, {"is_checkpoint_format": True})

    async def update(self, update_info: dict[str, Any], seconds: float) -> None:
        """Lets the server fetch and load."""
        await self._call("POST", "/update_weights", seconds, {"update_info": update_info})

    async def finish_update(self, version: str | None = None) -> None:
        """Closes an update, and labels what the server holds."""
        await self._call("POST", "/finish_weight_update", _CONTROL_SECONDS, {"weight_version": version})

    async def reset_prefix_cache(self) -> None:
        """Forgets keys and values that earlier weights computed; running requests compute theirs again."""
        await self._call("POST", "/reset_prefix_cache?reset_running_requests=true", _CONTROL_SECONDS)

    async def relabel(self, version: str) -> None:
        """Changes the label alone."""
        await self._call("POST", "/update_weight_version", _CONTROL_SECONDS, {"new_version": version})

    async def world_size(self) -> int:
        """Worker processes of the server."""
        return int((await self._call("GET", "/get_world_size", _ASK_SECONDS))["world_size"])

    async def init_transfer(self, init_info: dict[str, Any], seconds: float) -> None:
        """Lets the server's workers join a transfer group."""
        await self._call("POST", "/init_weight_transfer_engine", seconds, {"init_info": init_info})

    async def shutdown_transfer(self) -> None:
        """Lets the server's workers leave their transfer group."""
        await self._call("POST", "/shutdown_weight_transfer_engine", _CONTROL_SECONDS)

    async def models(self) -> list[str]:
        """Names that requests may ask for: the model's, and those of the adapters."""
        return [str(model["id"]) for model in (await self._call("GET", "/v1/models", _ASK_SECONDS))["data"]]

    async def load_adapter(self, name: str, path: str, seconds: float) -> None:
        """Loads an adapter from a folder that the server sees."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": False}
        await self._call("POST", "/v1/load_lora_adapter", seconds, body, as_json=False)

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter."""
        await self._call("POST", "/v1/unload_lora_adapter", _CONTROL_SECONDS, {"lora_name": name}, as_json=False)

    async def complete(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One completion."""
        return dict(await self._call("POST", "/v1/completions", seconds, body))

    # Of several calls.

    async def open_update(self) -> None:
        """Opens an update, closing one that a killed trainer left."""
        try:
            await self.start_update()
        except PodRefusedError:
            # "already active": left by a trainer that was killed in the middle. Closing it loads nothing.
            await self.finish_update()
            await self.start_update()

    async def forget_caches(self) -> None:
        """Before 0.26 a pause that keeps requests keeps their caches too, computed by the old weights."""
        try:
            await self.reset_prefix_cache()
        except PodRefusedError as error:
            if error.status != _NOT_FOUND:
                raise

    async def begin_pull(self, version: PublishedVersion, seconds: float, fetch_id: str = "") -> None:
        """Lets the pod fetch what is still being written; it keeps generating until `pull`.

        `fetch_id`: under which it is to say that it has all.
        """
        await self.open_update()
        await self.update(_pull_update(version, seconds, "fetch", fetch_id), seconds)

    async def pull(self, version: PublishedVersion, seconds: float, *, begun: bool = False) -> float:
        """Brings `version` into the pod.

        Args:
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
            await self.pause()
            if not begun:
                await self.open_update()
            await self.forget_caches()  # nothing computes new ones before the pause ends
            await self.update(_pull_update(version, seconds, "load"), seconds)
            await self.finish_update(version.label)
        except PodRefusedError:
            await asyncio.shield(self.resume_quietly())
            raise
        except BaseException:  # a cancelled sync too
            await asyncio.shield(self._disown())
            raise
        await self.resume()
        return time.monotonic() - started

    async def resume_quietly(self) -> None:
        """Ends a pause where the error that led here says more; the watcher resumes later what this can't."""
        with contextlib.suppress(PodError):
            await self.resume()

    async def _disown(self) -> None:
        """Resumes a pod with unknown weights; without its label it gets no traffic."""
        with contextlib.suppress(PodError):  # no such route before 0.27: there the label is our own note
            await self.relabel(UNSYNCED)
        await self.resume_quietly()

    async def _call(
        self, method: str, path: str, seconds: float, body: dict[str, Any] | None = None, *, as_json: bool = True
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        call = f"{method} {self.pod.url}{path.partition('?')[0]}"
        try:
            async with self._session.request(
                method, self.pod.url + path, json=body, timeout=timeout, headers=_HEADERS
            ) as response:
                if response.status >= 400:
                    raise PodRefusedError(call, response.status, (await response.text())[:_TEXT_LIMIT])
                return await response.json(content_type=None) if as_json else None
        except TimeoutError as error:
            raise PodUnreachableError(f"{call}: no answer in {seconds:.0f} s") from error
        except aiohttp.ClientError as error:
            raise PodUnreachableError(f"{call}: {error or type(error).__name__}") from error
        except ValueError as error:
            raise PodRefusedError(call, 200, f"the answer isn't JSON: {error}") from error


def _pull_update(
    version: PublishedVersion, seconds: float, step: Literal["fetch", "load"], fetch_id: str = ""
) -> dict[str, Any]:
    update = PullUpdate(
        manifest_url=version.source, version=version.label, timeout_seconds=seconds, step=step, fetch_id=fetch_id
    )
    return update.model_dump()
