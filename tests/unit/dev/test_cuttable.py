"""The network that tests cut."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.support.cuttable import CuttableNetwork

_WAIT = 10.0


@dataclass
class _Echo:
    """A server that answers with what it is sent."""

    received: bytearray = field(default_factory=bytearray)
    connections: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(1024):
                self.received += data
                writer.write(data)
        except ConnectionError:
            pass
        self.ended.set()
        writer.close()


@dataclass
class _World:
    echo: _Echo
    network: CuttableNetwork

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.network.port)


@pytest.fixture
async def world() -> AsyncIterator[_World]:
    """A server, and the network before it."""
    echo = _Echo()
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0) as server:
        with CuttableNetwork(server.sockets[0].getsockname()[1]) as network:
            yield _World(echo, network)


async def _read(reader: asyncio.StreamReader, size: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(size), _WAIT)


async def test_what_is_sent_while_it_is_cut_arrives_once_it_heals(world: _World) -> None:
    reader, writer = await world.connect()
    writer.write(b"before")
    assert await _read(reader, 6) == b"before"
    world.network.cut()
    writer.write(b"after")
    await asyncio.sleep(0.2)
    assert world.echo.received == b"before"
    world.network.heal()
    assert await _read(reader, 5) == b"after"
    writer.close()


async def test_what_was_sent_by_one_who_closed_meanwhile_never_arrives(world: _World) -> None:
    reader, writer = await world.connect()
    writer.write(b"before")
    await _read(reader, 6)
    world.network.cut()
    writer.write(b"after")
    await asyncio.sleep(0.1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.sleep(0.2)
    assert not world.echo.ended.is_set(), "nobody can know before the network heals"
    world.network.heal()
    await asyncio.wait_for(world.echo.ended.wait(), _WAIT)
    assert world.echo.received == b"before"


async def test_a_connection_that_is_begun_while_it_is_cut_waits(world: _World) -> None:
    world.network.cut()
    reader, writer = await world.connect()
    writer.write(b"hello")
    await asyncio.sleep(0.2)
    assert world.echo.received == b""
    world.network.heal()
    assert await _read(reader, 5) == b"hello"
    writer.close()


async def test_the_end_of_a_connection_is_passed_on_with_what_came_before(world: _World) -> None:
    _, writer = await world.connect()
    writer.write(b"bye")
    writer.close()
    await asyncio.wait_for(world.echo.ended.wait(), _WAIT)
    assert world.echo.received == b"bye"


async def test_connections_that_are_reset_end_at_once_and_others_can_be_made(world: _World) -> None:
    reader, writer = await world.connect()
    writer.write(b"one")
    assert await _read(reader, 3) == b"one"
    await asyncio.to_thread(world.network.reset)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await _read(reader, 1)
    reader, writer = await world.connect()
    writer.write(b"two")
    assert await _read(reader, 3) == b"two"
