"""HTTP sessions by event loop: NeMo Gym's blocking Sandbox has a loop and a thread of its own, and one provider may
serve several of them."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import aiohttp

# Below what servers keep: a request on a connection that its server just closed can't be told from a lost command.
_KEEPALIVE_SECONDS = 60.0


@dataclass
class _Entry:
    session: aiohttp.ClientSession
    users: int = 0
    closing: bool = False


class Sessions:
    """Opens a session at its first use in a loop. Closing while others use it waits for the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: WeakKeyDictionary[asyncio.AbstractEventLoop, _Entry] = WeakKeyDictionary()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """The running loop's session."""
        loop = asyncio.get_running_loop()
        with self._lock:
            entry = self._entries.get(loop)
            if entry is None:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
                session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
                entry = self._entries[loop] = _Entry(session)
            entry.users += 1
        try:
            yield entry.session
        finally:
            with self._lock:
                entry.users -= 1
            await self._close_if_unused(loop)

    async def close(self) -> None:
        """Closes the running loop's session, at once or after its last use. A later use opens a new one."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if entry := self._entries.get(loop):
                entry.closing = True
        await self._close_if_unused(loop)

    async def _close_if_unused(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            entry = self._entries.get(loop)
            if entry is None or not entry.closing or entry.users:
                return
            del self._entries[loop]
        await entry.session.close()
