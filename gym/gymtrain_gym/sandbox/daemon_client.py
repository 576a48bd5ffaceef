"""Client of the daemon in a sandbox's pod: commands and files.

A command is tried again only if it surely didn't run: the connection was refused, or the daemon was too busy. A
connection that breaks later may have run the command, so that is an error. Moving one whole file is safe to repeat. A
pod that is reused keeps its address and token: each call says which instance of the daemon it is meant for, so that
none reaches what is in a lost sandbox's place.
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
from gymtrain_gym.sandbox.broker_client import SandboxView
from gymtrain_gym.sandbox.errors import SandboxFileError, SandboxLostError
from gymtrain_gym.sandbox.http_sessions import Sessions

_CONNECT_SECONDS = 5.0  # of one try
RETRY_SECONDS = 30.0  # of all tries to begin
_PAUSE_SECONDS = 0.1  # doubled at each try
_PAUSE_LIMIT_SECONDS = 5.0
_SILENCE_SECONDS = 45.0  # a command that says nothing still sends a sign of life every 10 s
_GRACE_SECONDS = 30.0  # for the daemon to end a command whose time is up
_BUSY = frozenset({429, 503})  # too many commands or open files: the sandbox's own doing
_OTHER_INSTANCE, _ENDING = 410, 503
_REFUSED = frozenset({400, 413, 422})  # what was asked for can't be run
_QUOTED = 400  # characters of an error's body
_FILE_SECONDS = 600.0  # of one try
_FILE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=120.0)
_CHUNK = 1 << 20
MOST_FILE_BYTES = 16 << 30  # of a file that is read from a sandbox


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


async def execute(
    sessions: Sessions, sandbox: SandboxView, body: dict[str, Any], timeout_seconds: float | None
) -> Finished:
    """Runs a command to its end.

    Raises:
        SandboxLostError: the daemon is gone, or went away before the command's end.
    """
    total = None if timeout_seconds is None else timeout_seconds + _GRACE_SECONDS
    timeout = aiohttp.ClientTimeout(total=total, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
    end, pause = time.monotonic() + RETRY_SECONDS, _PAUSE_SECONDS
    while True:
        try:
            async with (
                sessions.use() as session,
                session.post(
                    f"{sandbox.url}/v1/exec", json=body, headers=headers(sandbox), timeout=timeout
                ) as response,
            ):
                if response.status == 200:
                    return await _finished(sandbox, response.content.iter_any())
                status, text = response.status, await response.text(errors="replace")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if time.monotonic() > end:
                _lost(sandbox, f"it can't be reached: {error}")
        except TimeoutError:
            _lost(sandbox, "it stopped answering while a command ran")
        except (aiohttp.ClientError, OSError) as error:
            _lost(sandbox, f"the connection broke while a command ran: {type(error).__name__}: {error}")
        else:
            _raise_if_gone(sandbox, status, text)
            if status in _REFUSED or (status in _BUSY and time.monotonic() > end):
                return Finished(error="refused", message=_quoted(text))
            if status not in _BUSY:
                _lost(sandbox, f"its daemon answered {status}: {_quoted(text)}")
        await asyncio.sleep(pause)
        pause = min(_PAUSE_LIMIT_SECONDS, 2 * pause)


async def write_file(sessions: Sessions, sandbox: SandboxView, path: str, content: Path | bytes, mode: int) -> bool:
    """Writes one file; False if its folder is missing.

    Raises:
        SandboxFileError: refused.
        SandboxLostError: the daemon is gone.
    """
    query = urlencode({"path": path, "mode": f"{mode & 0o7777:04o}"})

    async def attempt(session: aiohttp.ClientSession) -> bool:
        data = content if isinstance(content, bytes) else _chunks(content)
        async with session.put(
            f"{sandbox.url}/v1/file?{query}", data=data, headers=headers(sandbox), timeout=_FILE_TIMEOUT
        ) as response:
            if response.status == 404:
                return False
            await _expect(response, sandbox, f"{path} can't be written in sandbox {sandbox.id}")
            return True

    return await _repeated(sessions, sandbox, attempt)


async def read_file(
    sessions: Sessions, sandbox: SandboxView, path: str, target: Path, most: int = MOST_FILE_BYTES
) -> None:
    """Reads one file of at most so many bytes into `target`, which appears whole or not at all.

    Raises:
        SandboxFileError: missing, not readable, or larger: one with holes takes no room in the sandbox.
        SandboxLostError: the daemon is gone.
    """
    part = target.with_name(f".{target.name}.part")
    query = urlencode({"path": path})

    async def attempt(session: aiohttp.ClientSession) -> None:
        async with session.get(
            f"{sandbox.url}/v1/file?{query}", headers=headers(sandbox), timeout=_FILE_TIMEOUT
        ) as response:
            await _expect(response, sandbox, f"{path} can't be read from sandbox {sandbox.id}")
            too_large = SandboxFileError(
                f"{path} in sandbox {sandbox.id} has more than {most} bytes: pack what is needed of it there"
            )
            if (response.content_length or 0) > most:
                raise too_large
            with part.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    if file.tell() + len(chunk) > most:
                        raise too_large
                    file.write(chunk)

    try:
        await _repeated(sessions, sandbox, attempt)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def headers(sandbox: SandboxView) -> dict[str, str]:
    """What each call to the daemon says: who calls, and whom."""
    own = {DAEMON_INSTANCE_HEADER: sandbox.instance} if sandbox.instance else {}
    return {"Authorization": f"Bearer {sandbox.token}", **own}


def _raise_if_gone(sandbox: SandboxView, status: int, text: str) -> None:
    """Raises SandboxLostError where the daemon answers that this sandbox has ended."""
    if status == _OTHER_INSTANCE or (status == _ENDING and _body(text).get("error") == "resetting"):
        _lost(sandbox, _quoted(text))


def _lost(sandbox: SandboxView, what: str) -> NoReturn:
    """Raises SandboxLostError."""
    raise SandboxLostError(f"sandbox {sandbox.id} (pod {sandbox.pod or 'unknown'}) is lost: {what}")


def _quoted(text: str) -> str:
    """The message of an error's body."""
    return " ".join(str(_body(text).get("message", text)).split())[:_QUOTED]


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


async def _finished(sandbox: SandboxView, chunks: AsyncIterator[bytes]) -> Finished:
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
    _lost(sandbox, "its answer ended before the command did")


def _events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            yield json.loads(line)


async def _repeated[T](
    sessions: Sessions, sandbox: SandboxView, attempt: Callable[[aiohttp.ClientSession], Awaitable[T]]
) -> T:
    end, pause = time.monotonic() + RETRY_SECONDS, _PAUSE_SECONDS
    while True:
        try:
            async with asyncio.timeout(_FILE_SECONDS), sessions.use() as session:
                return await attempt(session)
        except aiohttp.ClientError as error:  # some of them are TimeoutErrors too
            if time.monotonic() > end:
                _lost(sandbox, f"a file can't be moved: {type(error).__name__}: {error}")
        except TimeoutError:
            _lost(sandbox, f"a file took longer than {_FILE_SECONDS:g} s")
        await asyncio.sleep(pause)
        pause = min(_PAUSE_LIMIT_SECONDS, 2 * pause)


async def _expect(response: aiohttp.ClientResponse, sandbox: SandboxView, what: str) -> None:
    if response.status >= 300:
        text = await response.text(errors="replace")
        _raise_if_gone(sandbox, response.status, text)
        raise SandboxFileError(f"{what}: {response.status} {_quoted(text)}")


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
