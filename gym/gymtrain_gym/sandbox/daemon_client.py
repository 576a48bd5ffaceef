"""Client of the exec daemon in a sandbox's pod: commands.

Only what surely didn't run is tried again: a connection that was refused, and a daemon that is too busy. A connection
that breaks later may have run the command, so it is an error. A pod that is reused keeps its address and token: each
call says which instance of the daemon it is meant for, so that none reaches what is in a lost sandbox's place.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import aiohttp

from gymtrain_api.sandboxes import DAEMON_INSTANCE_HEADER
from gymtrain_gym.sandbox.errors import SandboxLostError
from gymtrain_gym.sandbox.lease import Lease
from gymtrain_gym.sandbox.http_sessions import Sessions

CONNECT_SECONDS = 5.0  # of one try
RETRY_SECONDS = 30.0  # of all tries to begin
PAUSE_SECONDS = 0.1  # doubled at each try
PAUSE_LIMIT_SECONDS = 5.0
_SILENCE_SECONDS = 45.0  # a command that says nothing still sends a sign of life every 10 s
_GRACE_SECONDS = 30.0  # for the daemon to end a command whose time is up
_BUSY = frozenset({429, 503})  # too many commands or open files: the sandbox's own doing
_OTHER_INSTANCE, _ENDING = 410, 503
_REFUSED = frozenset({400, 413, 422})  # what was asked for can't be run
_QUOTED = 400  # characters of an error's body


@dataclass
class Finished:
    """How a command ended."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    left_out: tuple[int, int] = (0, 0)  # bytes of stdout and stderr beyond the daemon's limit
    error: str = ""  # it didn't start, and why
    message: str = ""


async def execute(sessions: Sessions, lease: Lease, body: dict[str, Any], timeout_seconds: float | None) -> Finished:
    """Runs a command to its end.

    Raises:
        SandboxLostError: the daemon is gone, or went away before the command's end.
    """
    total = None if timeout_seconds is None else timeout_seconds + _GRACE_SECONDS
    timeout = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
    end, pause = time.monotonic() + RETRY_SECONDS, PAUSE_SECONDS
    while True:
        try:
            async with (
                sessions.use() as session,
                session.post(f"{lease.url}/v1/exec", json=body, headers=headers(lease), timeout=timeout) as response,
            ):
                if response.status == 200:
                    return await _finished(lease, response.content.iter_any())
                status, text = response.status, await response.text(errors="replace")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if time.monotonic() > end:
                lost(lease, f"it can't be reached: {error}")
        except TimeoutError:
            lost(lease, "it fell silent while a command ran")
        except (aiohttp.ClientError, OSError) as error:
            lost(lease, f"the connection broke while a command ran: {type(error).__name__}: {error}")
        else:
            if_gone(lease, status, text)
            if status in _REFUSED or (status in _BUSY and time.monotonic() > end):
                return Finished(error="refused", message=quoted(text))
            if status not in _BUSY:
                lost(lease, f"its daemon answered {status}: {quoted(text)}")
        await asyncio.sleep(pause)
        pause = min(PAUSE_LIMIT_SECONDS, 2 * pause)


def headers(lease: Lease) -> dict[str, str]:
    """What each call to the daemon says: who calls, and whom."""
    own = {DAEMON_INSTANCE_HEADER: lease.instance} if lease.instance else {}
    return {"Authorization": f"Bearer {lease.token}", **own}


def if_gone(lease: Lease, status: int, text: str) -> None:
    """Raises SandboxLostError where the daemon answers that this sandbox has ended."""
    if status == _OTHER_INSTANCE or (status == _ENDING and _body(text).get("error") == "resetting"):
        lost(lease, quoted(text))


def lost(lease: Lease, what: str) -> NoReturn:
    """Raises SandboxLostError."""
    raise SandboxLostError(f"sandbox {lease.id} (pod {lease.pod or 'unknown'}) is lost: {what}")


def quoted(text: str) -> str:
    """The message of an error's body."""
    return " ".join(str(_body(text).get("message", text)).split())[:_QUOTED]


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


async def _finished(lease: Lease, chunks: AsyncIterator[bytes]) -> Finished:
    """The stream of events, read to its last one."""
    finished, rest = Finished(), b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for event in _events(lines):
            match event.get("t"):
                case "out":
                    finished.stdout += base64.b64decode(event["d"])
                case "err":
                    finished.stderr += base64.b64decode(event["d"])
                case "exit":
                    finished.code, finished.signal = int(event["code"]), event.get("signal")
                    finished.timed_out = bool(event.get("timedOut"))
                    finished.left_out = int(event.get("outTruncated") or 0), int(event.get("errTruncated") or 0)
                    return finished
                case "error":
                    finished.error, finished.message = str(event["error"]), str(event.get("message", ""))
                    return finished
    lost(lease, "its answer ended before the command did")


def _events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            yield json.loads(line)
