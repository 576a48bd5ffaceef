"""The servers that the conformance test plays."""

import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gymtrain_conformance.stand_ins import Server

AT_ONCE = 64


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def bound(asked: list[str]) -> Iterator[tuple[str, int]]:
    """The address of a server that notes who asks for what."""

    def ask(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return 200, body

    place = socket.create_server(("127.0.0.1", 0))
    address = place.getsockname()
    server = Server(place, ask)
    yield address
    server.close()


def test_who_goes_away_amid_a_body_has_asked_for_nothing(bound: tuple[str, int], asked: list[str]) -> None:
    with socket.create_connection(bound, timeout=10) as client:
        client.sendall(b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b"", "it ends without an answer"
    assert asked == []


def test_all_rollouts_of_a_step_may_come_at_once(bound: tuple[str, int], asked: list[str]) -> None:
    together = threading.Barrier(AT_ONCE)

    def call() -> None:
        connection = http.client.HTTPConnection(*bound, timeout=30)
        together.wait(30)
        connection.request("POST", "/run", b"{}")
        connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=call) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == ["/run"] * AT_ONCE
