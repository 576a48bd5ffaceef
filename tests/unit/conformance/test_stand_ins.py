"""The servers that the conformance test plays."""

import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gymtrain_conformance.record import Lost, Record, Update
from gymtrain_conformance.stand_ins import Server, Vllm

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


def test_what_a_process_asked_for_before_its_end_is_answered_once_the_server_has_settled() -> None:
    asked: list[str] = []
    held = threading.Event()

    def ask(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        held.wait(30)
        asked.append(path)
        return 200, body

    place = socket.create_server(("127.0.0.1", 0))
    address = place.getsockname()
    server = Server(place, ask)
    for _ in range(AT_ONCE):
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert not server.settle(0.1)
    held.set()
    assert server.settle(30)
    assert asked == ["/run"] * AT_ONCE
    server.close()


class _LosesNext:
    """A pod's lock, after which the pod loses its weights once."""

    def __init__(self, vllm: Vllm) -> None:
        self._vllm = vllm
        self._lock = threading.Lock()
        self._loses = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._loses:
            self._loses = False
            assert self._vllm.lose(2)


def test_an_update_ends_with_its_own_label_though_the_pod_restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    vllm = Vllm(record, "conformance")
    vllm.ask("POST", "/start_weight_update", {})
    monkeypatch.setattr(vllm, "_lock", _LosesNext(vllm))
    vllm.ask("POST", "/finish_weight_update", {"weight_version": "conformance:2:1"})
    update, lost = record.all()
    assert isinstance(update, Update)
    assert update.label == "conformance:2:1"
    assert isinstance(lost, Lost)


def test_a_pod_that_serves_no_weights_of_the_attempt_has_none_to_lose() -> None:
    vllm = Vllm(Record(), "conformance")
    assert not vllm.lose(1)
    vllm.ask("POST", "/update_weight_version", {"new_version": "conformance:1:3"})
    vllm.ask("POST", "/pause", {})
    assert not vllm.lose(1)
    vllm.ask("POST", "/resume", {})
    assert not vllm.lose(2)
    assert vllm.lose(1)
    assert vllm.label == "default"
