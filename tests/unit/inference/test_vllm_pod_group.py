"""What the pods of a vLLM server on several nodes agree on before they start."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from gymtrain_vllm import pod_group
from gymtrain_vllm.errors import GroupError
from gymtrain_vllm.pod_group import Place, Start, join, lead, place

VARIABLES = {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "run-vllm-0.run-vllm.ns", "VLLM_HOST_IP": "10.0.0.2"}
LEADER = Place(0, "localhost", "127.0.0.1")


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


@pytest.fixture
def answers(port: int) -> Iterator[list[bytes]]:
    """What a stand-in for the leader sends, one connection after the other."""
    given: list[bytes] = []

    def serve() -> None:
        while given:
            connection, _ = listener.accept()
            with connection:
                connection.recv(64)
                connection.sendall(given.pop(0))

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        threading.Timer(0.05, thread.start).start()
        yield given


def test_a_pod_knows_its_place() -> None:
    assert place(VARIABLES) == Place(1, "run-vllm-0.run-vllm.ns", "10.0.0.2")


@pytest.mark.parametrize("name", VARIABLES)
def test_a_pod_without_one_of_the_variables_says_so(name: str) -> None:
    with pytest.raises(GroupError, match=name):
        place({key: value for key, value in VARIABLES.items() if key != name})


def _in_thread(port: int, nodes: int, seed: int) -> Future[Start]:
    """A leader, which waits for its workers."""
    started: Future[Start] = Future()

    def run() -> None:
        try:
            started.set_result(lead(LEADER, seed, nodes, port))
        except GroupError as error:
            started.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return started


def _connected(port: int) -> socket.socket:
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.05)
    raise AssertionError("the leader never listens")


def _worker(index: int) -> Place:
    return Place(index, "localhost", "127.0.0.1")


def test_all_workers_get_the_leaders_seed_and_its_address(port: int) -> None:
    led = _in_thread(port, 3, 1234)
    joined = [join(_worker(index), port) for index in (1, 2)]
    assert joined == [led.result(10)] * 2 == [Start(1234, "127.0.0.1")] * 2


def test_the_leader_starts_when_it_has_heard_of_each_worker(port: int) -> None:
    led = _in_thread(port, 3, 1)
    for _ in range(2):
        join(_worker(1), port)
    with pytest.raises(TimeoutError):
        led.result(0.2)
    join(_worker(2), port)
    assert led.result(10).seed == 1


def test_a_worker_waits_for_its_leader(port: int) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            _in_thread(port, 2, 7)
        elif len(pauses) > 3:
            time.sleep(0.01)

    assert join(_worker(1), port, pause).seed == 7
    assert len(pauses) >= 3


@pytest.mark.parametrize("half", [b"", b"12", b"x\n", b"1" * 64])
def test_half_an_answer_is_none(port: int, answers: list[bytes], half: bytes) -> None:
    answers += [half, b"12\n"]
    assert join(_worker(1), port, lambda _: time.sleep(0.01)).seed == 12


@pytest.mark.parametrize("said", [b"", b"hello\n", b"9" * 64])
def test_whoever_says_something_else_keeps_no_worker_from_joining(port: int, said: bytes) -> None:
    led = _in_thread(port, 2, 5)
    stranger = _connected(port)
    stranger.sendall(said)
    stranger.close()
    assert join(_worker(1), port).seed == 5
    assert led.result(10).seed == 5


class _Listener:
    """One that takes no connections at first."""

    def __init__(self, listener: socket.socket, failures: int) -> None:
        self._listener = listener
        self._failures = failures

    def accept(self) -> Any:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._listener.accept()


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the leader's listener fail so often."""

    def fail(count: int) -> None:
        real = socket.create_server
        monkeypatch.setattr(pod_group, "_EVERY_SECONDS", 0.001)
        monkeypatch.setattr(pod_group, "_PATIENCE_SECONDS", 0.5)
        monkeypatch.setattr(pod_group, "_SAY_EVERY_SECONDS", 0.05)
        monkeypatch.setattr(socket, "create_server", lambda *args, **more: _Listener(real(*args, **more), count))

    return fail


def test_a_leader_that_has_too_many_open_files_for_a_while_still_hears_its_workers(
    port: int, failures: Callable[[int], None]
) -> None:
    failures(pod_group._ACCEPT_TRIES - 1)
    led = _in_thread(port, 2, 9)
    assert join(_worker(1), port, lambda _: time.sleep(0.05), tries=20).seed == 9
    assert led.result(10).seed == 9


def test_a_leader_that_can_hear_nobody_any_more_says_so(port: int, failures: Callable[[int], None]) -> None:
    failures(1_000_000)
    led = _in_thread(port, 2, 9)
    with pytest.raises(GroupError, match=rf"port {port}.*too many open files"):
        led.result(10)


def test_a_wait_can_be_given_up(port: int) -> None:
    with pytest.raises(GroupError, match="answer"):
        join(_worker(1), port, lambda _: None, tries=2)
