"""Ends vLLM's server if it can't be used any more, so that Kubernetes restarts its container.

| exit code | when | who notices |
|---|---|---|
| 70 | the model holds half of the weights that didn't fit it | the engine (`engine.py`) |
| 71 | the engine is gone and its API server stays | `watch`, in a thread of that server |
| 72 | one of several workers refused a call | `EndsOutOfStep`, around that server's application |
| 73 | a worker in another pod than the server has ended | the launcher of that pod (`serve.py`) |
| 74 | the trainer went away in the middle of a transfer | `EndsAbandoned`, around that server's application |

A server with several API server processes (--api-server-count) ends with 1 where one of them ended with 72 or 74: vLLM
ends the others, and tells the number in its log.

**The engine is gone.** vLLM's API server is another process than its engine. Once the engine has ended it is to end
too, but may stay: it waits for requests that nobody answers any more, with a /health that says 503 or with no open
port. Kubernetes restarts a container as soon as its first process ends, and a server that only fails its liveness probe
two minutes later.

**A worker refused a call.** A server of several workers asks all of them and reads one answer of each. It stops reading
at the first error, so that the answers behind it are taken for those of the next call, and so on forever
(vllm-project/vllm#57846, open in 0.32): a worker that fails later is noticed one call too late, when the version that
it lacks has its label already. Nothing from outside brings the answers into step again, so the server ends. Its
container is started again, and the trainer sends it the weights. vLLM puts the class around its application:
`--middleware gymtrain_vllm.server_exit.EndsOutOfStep`.

**The trainer went away.** NCCL has no deadline: a worker that waits in a broadcast of a trainer that was killed waits
forever, and no later trainer can use the server. Seen with 8 B, whose syncs took most of the time. The trainer's call
ends with it, which the server notices.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum, IntEnum
from typing import Any

from gymtrain_vllm import ready

_START_SECONDS = 0.2  # between two looks until the port is open: the engine may end in the next second
_EVERY_SECONDS = 2.0  # after that
_TIMES = 5  # in a row: vLLM may end by itself meanwhile, and say more
_PATIENCE_SECONDS = 10.0  # with an answer

_REFUSAL_SECONDS = 0.2  # in which the caller of a worker that refused gets the error
_ABANDONED_SECONDS = 10.0  # in which a call whose caller has gone may still end by itself

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Message, Receive, Send], Awaitable[None]]

ASKS_WORKERS = frozenset(
    {
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    }
)


class ExitCode(IntEnum):
    """What the container ends with."""

    HALF_LOADED = 70
    ENGINE_GONE = 71
    OUT_OF_STEP = 72
    WORKER_GONE = 73
    ABANDONED = 74


def exit_soon(code: ExitCode, seconds: float) -> None:
    """Ends this process, in which an error may be reported until then."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


class Health(Enum):
    """What /health says."""

    WELL = "it is well"
    FAILED = "it says that its engine is gone"
    CLOSED = "its port is closed"  # it starts, or waits for what is under way
    UNKNOWN = "it doesn't answer"  # it is busy: the probes of Kubernetes are for that


def watch_engine(port: int) -> None:
    """Watches from now on, in a thread."""
    threading.Thread(target=watch, args=(lambda: ask(port),), name="engine-watchdog", daemon=True).start()


def watch(
    ask: Callable[[], Health],
    end: Callable[[int], None] = os._exit,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns only where `end` does."""
    has_started, gone = False, 0
    while gone < _TIMES:
        pause(_EVERY_SECONDS if has_started else _START_SECONDS)
        health = ask()
        has_started = has_started or health is not Health.CLOSED  # vLLM opens its port once its engine runs
        gone = gone + 1 if has_started and health in (Health.FAILED, Health.CLOSED) else 0
    print("gymtrain: vLLM's engine has ended but its server still runs: ending it", flush=True)
    end(ExitCode.ENGINE_GONE)


def ask(port: int, host: str = ready.THIS_POD) -> Health:
    """One question to a server: the one in this process, or at `host`."""
    try:
        status, _ = ready.get("/health", port, _PATIENCE_SECONDS, host)
    except ConnectionRefusedError:
        return Health.CLOSED
    except OSError:
        return Health.UNKNOWN
    if status == 200:
        return Health.WELL
    return Health.FAILED if status >= 500 else Health.UNKNOWN


def _asks_workers(scope: Message) -> bool:
    return scope["type"] == "http" and scope["path"] in ASKS_WORKERS


class EndsOutOfStep:
    """ASGI middleware."""

    def __init__(self, app: App, end: Callable[[], None] | None = None) -> None:
        """`end` ends the server, soon."""
        self._app = app
        self._end = end or (lambda: exit_soon(ExitCode.OUT_OF_STEP, _REFUSAL_SECONDS))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers as the server does."""
        if not _asks_workers(scope):
            return await self._app(scope, receive, send)
        refused = True  # where the server raises, something outside of it answers with 500

        async def noted(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                # Below 500 the request was wrong, and no worker was asked.
                refused = message["status"] >= 500
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if refused:
                print(
                    f"gymtrain: POST {scope['path']} failed, and this server has several workers: their answers are "
                    "out of step from now on (vllm-project/vllm#57846). Ending it, so that Kubernetes restarts it",
                    flush=True,
                )
                self._end()
        return None


class EndsAbandoned:
    """ASGI middleware of a server whose weights arrive by NCCL."""

    def __init__(
        self, app: App, end: Callable[[], None] | None = None, patience_seconds: float = _ABANDONED_SECONDS
    ) -> None:
        """`end` ends the server, soon."""
        self._app = app
        self._end = end or (lambda: exit_soon(ExitCode.ABANDONED, 0.0))
        self._patience_seconds = patience_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers as the server does."""
        if not _asks_workers(scope):
            return await self._app(scope, receive, send)
        gone: asyncio.Task[Message] | None = None  # what comes after the request is its caller's end

        async def noticed() -> Message:
            message = await receive()
            await asyncio.sleep(self._patience_seconds)
            print(
                f"gymtrain: whoever asked for POST {scope['path']} is gone, and the workers still wait for it. NCCL "
                "has no deadline for that: ending the server, so that Kubernetes restarts it",
                flush=True,
            )
            self._end()
            return message

        async def heard() -> Message:
            nonlocal gone
            if gone is not None:
                return await asyncio.shield(gone)
            message = await receive()
            if not message.get("more_body", False):
                gone = asyncio.create_task(noticed())
            return message

        try:
            await self._app(scope, heard, send)
        finally:
            if gone is not None:
                gone.cancel()
        return None
