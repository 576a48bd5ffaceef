"""Client of the daemon in a sandbox's pod: commands and files.

A command is tried again only if it surely didn't run: the connection was refused, or the daemon was too busy. A
connection that breaks later may have run the command, so that is an error. Moving one whole file is safe to repeat. A
pod that is reused keeps its address and token: each call says which instance of the daemon it is meant for, so that none
reaches what is in a lost sandbox's place.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

import aiohttp

from gymtrain_api.sandboxes import DAEMON_INSTANCE_HEADER
from gymtrain_gym.sandbox.broker_client import Lease
from gymtrain_gym.sandbox.errors import SandboxFileError, SandboxLostError
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
_FILE_SECONDS = 600.0  # of one try
_FILE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=120.0)
_CHUNK = 1 << 20


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


async def put(sessions: Sessions, lease: Lease, path: str, content: Path | bytes, mode: int) -> bool:
    """Writes one file; False where its folder is missing.

    Raises:
        SandboxFileError: refused.
        SandboxLostError: the daemon is gone.
    """
    query = urlencode({"path": path, "mode": f"{mode & 0o7777:04o}"})

    async def attempt(session: aiohttp.ClientSession) -> bool:
        data = content if isinstance(content, bytes) else _chunks(content)
        async with session.put(
            f"{lease.url}/v1/file?{query}", data=data, headers=headers(lease), timeout=_FILE_TIMEOUT
        ) as response:
            if response.status == 404:
                return False
            await _expect(response, lease, f"{path} can't be written in sandbox {lease.id}")
            return True

    return await _repeated(sessions, lease, attempt)


async def get(sessions: Sessions, lease: Lease, path: str, target: Path) -> None:
    """Reads one file into `target`, which appears whole or not at all.

    Raises:
        SandboxFileError: missing, or not readable.
        SandboxLostError: the daemon is gone.
    """
    part = target.with_name(f".{target.name}.part")
    query = urlencode({"path": path})

    async def attempt(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{lease.url}/v1/file?{query}", headers=headers(lease), timeout=_FILE_TIMEOUT) as response:
            await _expect(response, lease, f"{path} can't be read from sandbox {lease.id}")
            with part.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    file.write(chunk)

    try:
        await _repeated(sessions, lease, attempt)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


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


async def _repeated[T](sessions: Sessions, lease: Lease, attempt: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
    end, pause = time.monotonic() + RETRY_SECONDS, PAUSE_SECONDS
    while True:
        try:
            async with asyncio.timeout(_FILE_SECONDS), sessions.use() as session:
                return await attempt(session)
        except aiohttp.ClientError as error:  # some of them are TimeoutErrors too
            if time.monotonic() > end:
                lost(lease, f"a file can't be moved: {type(error).__name__}: {error}")
        except TimeoutError:
            lost(lease, f"a file took longer than {_FILE_SECONDS:g} s")
        await asyncio.sleep(pause)
        pause = min(PAUSE_LIMIT_SECONDS, 2 * pause)


async def _expect(response: aiohttp.ClientResponse, lease: Lease, what: str) -> None:
    if response.status >= 300:
        text = await response.text(errors="replace")
        if_gone(lease, response.status, text)
        raise SandboxFileError(f"{what}: {response.status} {quoted(text)}")


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
