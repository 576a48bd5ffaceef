"""A network between one client and a server that can be cut, and heals: a TCP proxy.

What is sent while it is cut stays on its way and arrives once it heals, as kernels send again what wasn't acknowledged.
But where an end closed its connection meanwhile, what it had sent is dropped and the other end sees a reset: so it is
with ends that reset what they close. A kernel that only gives up after a time (TCP_USER_TIMEOUT) isn't played: here
everything is acknowledged at once.
"""

import asyncio

from tests.support.own_loop import OwnLoop


class CuttableNetwork(OwnLoop):
    """Listens on a port of 127.0.0.1 and passes everything on to another; use as a context manager."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self._target = target
        self._links: set[_Link] = set()
        self.is_cut = False
        self.port = 0

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        self._loop.close()

    def cut(self) -> None:
        """From now on nothing arrives, in either direction."""
        asyncio.run_coroutine_threadsafe(self._set(is_cut=True), self._loop).result(30)

    def heal(self) -> None:
        """From now on everything arrives, with what was on its way."""
        asyncio.run_coroutine_threadsafe(self._set(is_cut=False), self._loop).result(30)

    def reset(self) -> None:
        """Ends all connections at once, as a load balancer that restarts does."""
        asyncio.run_coroutine_threadsafe(self._reset(), self._loop).result(30)

    async def _reset(self) -> None:
        for link in list(self._links):
            link.drop()

    async def _start(self) -> None:
        self._server = await self._loop.create_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.drop()

    async def _set(self, *, is_cut: bool) -> None:
        self.is_cut = is_cut
        for link in list(self._links):
            link.go_on()

    def _accepted(self) -> "_End":
        link = _Link(self, self._links)
        connecting = self._loop.create_task(self._connect(link))
        link.connecting = connecting
        return link.client

    async def _connect(self, link: "_Link") -> None:
        try:
            await self._loop.create_connection(lambda: link.server, "127.0.0.1", self._target)
        except OSError:
            link.drop()


class _Link:
    """Two connections that are one to those at their ends."""

    def __init__(self, network: CuttableNetwork, links: "set[_Link]") -> None:
        self._network = network
        self._links = links
        self.client, self.server = _End(self), _End(self)
        self.connecting: asyncio.Task[None] | None = None
        self._held: list[tuple[_End, bytes]] = []
        self._lost = False
        links.add(self)

    def passed(self, sender: "_End", data: bytes) -> None:
        """Notes what an end has sent."""
        self._held.append((self.server if sender is self.client else self.client, data))
        self.go_on()

    def lost(self) -> None:
        """Notes that an end has closed its connection."""
        self._lost = True
        if self._network.is_cut:
            self._held.clear()
        self.go_on()

    def go_on(self) -> None:
        """Does what the network lets through now."""
        if self._network.is_cut:
            return
        if self.client.transport and self.server.transport:
            for receiver, data in self._held:
                if receiver.transport and not receiver.transport.is_closing():
                    receiver.transport.write(data)
            self._held.clear()
        if self._lost:
            self._links.discard(self)
            for end in (self.client, self.server):
                if end.transport:
                    end.transport.close()

    def drop(self) -> None:
        """Ends both connections at once."""
        self._links.discard(self)
        for end in (self.client, self.server):
            if end.transport:
                end.transport.abort()


class _End(asyncio.Protocol):
    """The proxy's own end of one connection."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.go_on()

    def data_received(self, data: bytes) -> None:
        self._link.passed(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost()
