"""Client of the exec daemon in a sandbox's pod: files. Moving one whole file is safe to repeat."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from gymtrain_gym.sandbox.daemon_client import (
    CONNECT_SECONDS,
    PAUSE_LIMIT_SECONDS,
    PAUSE_SECONDS,
    RETRY_SECONDS,
    headers,
    if_gone,
    lost,
    quoted,
)
from gymtrain_gym.sandbox.errors import SandboxFileError
from gymtrain_gym.sandbox.lease import Lease
from gymtrain_gym.sandbox.http_sessions import Sessions

_FILE_SECONDS = 600.0  # of one try
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=120.0)
_CHUNK = 1 << 20


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
            f"{lease.url}/v1/file?{query}", data=data, headers=headers(lease), timeout=_TIMEOUT
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
        async with session.get(f"{lease.url}/v1/file?{query}", headers=headers(lease), timeout=_TIMEOUT) as response:
            await _expect(response, lease, f"{path} can't be read from sandbox {lease.id}")
            with part.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    file.write(chunk)

    try:
        await _repeated(sessions, lease, attempt)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


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
