"""Waiting for the run's servers, in a thread beside the loading of the model."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import aiohttp

from gymtrain_api.wiring import RunConfig
from gymtrain_trainer.context import Context, read_run_config
from gymtrain_trainer.errors import ServersError, SettingsError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.weights import NoServersError, SyncSettings, wait_for_servers

_PERIOD_SECONDS = 0.5
_REQUEST_SECONDS = 5.0


def own_address() -> str:
    """An address of this pod for the vLLM pods. The kubelet writes a pod's name and IP into its /etc/hosts."""
    try:
        address = socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)[0][4][0]
    except OSError:
        return "127.0.0.1"
    return f"[{address}]" if ":" in str(address) else str(address)


def inference_port(context: Context) -> int:
    """Port of each vLLM pod: that of the Service in front of them."""
    return int(context.run.inference_url.rpartition(":")[2].rstrip("/"))


def sync_settings(context: Context) -> SyncSettings:
    """Where the weights go, and from where vLLM fetches them."""
    spec = context.run.spec
    return SyncSettings(
        run=context.run.name,
        attempt=context.attempt,
        pods_host=context.run.inference_pods_host,
        weights_url=f"http://{own_address()}:{context.port}/weights",
        timeout_seconds=spec.weight_sync.timeout_seconds,
        pods_port=inference_port(context),
    )


def gym_servers(run: RunConfig) -> dict[str, str]:
    """The Gym servers that the trainer itself calls: name and URL."""
    if run.spec.rollout.mode == "Agent":
        return {f"agent {name}": url for name, url in run.agents.items()}
    found: dict[str, str] = {}
    for name, route in run.verifiers.items():
        found |= {f"model server of {name}": route.model_url, f"resources server of {name}": route.resources_url}
    return found


async def wait_for_gym(servers: Mapping[str, str], deadline_seconds: float, on_wait: Callable[[str], None]) -> None:
    """Until `GET /` of every server answers 200.

    Raises:
        ServersError: some didn't before the deadline; the message names them and what they said last.
    """
    end = time.monotonic() + deadline_seconds
    missing = dict.fromkeys(servers, "no answer yet")
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)

    async def ask(session: aiohttp.ClientSession, name: str) -> None:
        try:
            async with session.get(f"{servers[name]}/") as response:
                if response.status == 200:
                    del missing[name]
                else:
                    missing[name] = f"GET / answers {response.status}"
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            missing[name] = f"{type(error).__name__}: {error}"

    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            await asyncio.gather(*(ask(session, name) for name in list(missing)))
            if not missing:
                on_wait("")
                return
            on_wait("Gym " + ", ".join(sorted(missing)))
            if time.monotonic() > end:
                detail = "; ".join(f"{name} at {servers[name]}: {why}" for name, why in sorted(missing.items()))
                raise ServersError(f"Gym servers not ready after {deadline_seconds:g} s: {detail}")
            await asyncio.sleep(_PERIOD_SECONDS)


def wanted_servers(context: Context, environ: Mapping[str, str] = os.environ) -> Callable[[], int]:
    """How many vLLM servers the run is to have now. That may change at any time, and the kubelet brings the change to
    run.json within a minute or two: who waited for the number of the start would wait for pods that nobody makes."""

    def wanted() -> int:
        try:
            return read_run_config(environ).spec.inference.replicas
        except SettingsError:  # it was there at the start
            return context.run.spec.inference.replicas

    return wanted


async def wait_for_all(context: Context, board: ProgressBoard) -> None:
    """Until every Gym server and every vLLM pod answers; says on the board what it waits for.

    Raises:
        ServersError: the deadline passed.
    """
    spec = context.run.spec
    waiting: dict[str, str] = {}

    def on_wait(part: str) -> Callable[[str], None]:
        def note(text: str) -> None:
            waiting[part] = text
            texts = [text for text in waiting.values() if text]
            board.update(message="waiting for " + " and ".join(texts) if texts else "")

        return note

    board.update(phase="waiting_for_servers")
    settings, deadline = sync_settings(context), float(spec.startup_deadline_seconds)
    note = on_wait("vllm")
    note("vLLM")
    gym = asyncio.create_task(wait_for_gym(gym_servers(context.run), deadline, on_wait("gym")))
    try:
        await wait_for_servers(settings, deadline_seconds=deadline, count=wanted_servers(context), on_wait=note)
        note("")
        await gym
    except NoServersError as error:
        raise ServersError(str(error)) from error
    finally:
        gym.cancel()
    board.update(servers_ready_at=time.time(), message="")


def start_waiting(context: Context, board: ProgressBoard) -> Future[None]:
    """Waits in a thread of its own, so that the main thread can load the model meanwhile."""
    future: Future[None] = Future()

    def body() -> None:
        try:
            future.set_result(asyncio.run(wait_for_all(context, board)))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="servers", daemon=True).start()
    return future
