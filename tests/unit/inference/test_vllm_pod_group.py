"""What the pods of a vLLM server on several nodes agree on before they start."""

import socket
import threading
from collections.abc import Iterator

import pytest

from gymtrain_vllm.errors import GroupError
from gymtrain_vllm.pod_group import Place, join, lead, place

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


def test_all_workers_get_the_leaders_seed_and_its_address(port: int) -> None:
    led = lead(LEADER, 1234, port)
    assert (led.seed, led.leader) == (1234, "127.0.0.1")
    assert [join("localhost", port), join("localhost", port)] == [led, led]


def test_a_worker_waits_for_its_leader(port: int) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            lead(LEADER, 7, port)

    assert join("127.0.0.1", port, pause).seed == 7
    assert len(pauses) == 3


@pytest.mark.parametrize("half", [b"", b"12", b"x\n", b"1" * 64])
def test_half_an_answer_is_none(port: int, answers: list[bytes], half: bytes) -> None:
    answers += [half, b"12\n"]
    assert join("127.0.0.1", port, lambda _: None).seed == 12


def test_one_worker_that_goes_away_keeps_no_other_from_joining(port: int) -> None:
    lead(LEADER, 5, port)
    socket.create_connection(("127.0.0.1", port)).close()
    assert join("127.0.0.1", port).seed == 5


def test_a_wait_can_be_given_up(port: int) -> None:
    with pytest.raises(GroupError, match="answer"):
        join("127.0.0.1", port, lambda _: None, tries=2)
