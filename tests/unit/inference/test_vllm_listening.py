"""The address at which vLLM listens."""

import socket

import pytest

from gymtrain_vllm.listening import any_address
from tests.support.listening import OnlyIPv4, answers, needs_ipv6


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was started with ipv6.disable=1."""
    monkeypatch.setattr("gymtrain_vllm.listening.socket.socket", OnlyIPv4)


@needs_ipv6
def test_a_server_that_binds_by_itself_hears_both_families_too() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.bind((any_address(), 0))
        server.listen()
        assert answers("::1", server.getsockname()[1])
        assert answers("127.0.0.1", server.getsockname()[1])


def test_without_ipv6_such_a_server_binds_to_ipv4(without_ipv6: None) -> None:
    assert any_address() == "0.0.0.0"


@needs_ipv6
def test_where_sockets_of_ipv6_take_no_ipv4_such_a_server_binds_to_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """net.ipv6.bindv6only=1"""
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: 1)
    assert any_address() == "0.0.0.0"
