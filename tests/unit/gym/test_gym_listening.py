"""Sockets at all addresses, of both families where the host has them."""

import socket

import pytest

from gymtrain_gym.server.listening import bound_everywhere
from tests.support.listening import OnlyIPv4, answers, needs_ipv6


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was started with ipv6.disable=1."""
    monkeypatch.setattr("gymtrain_gym.server.listening.socket.socket", OnlyIPv4)


@needs_ipv6
def test_both_families_are_heard() -> None:
    with bound_everywhere(0) as server:
        server.listen()
        port = server.getsockname()[1]
        assert answers("127.0.0.1", port)
        assert answers("::1", port)


def test_a_host_without_ipv6_is_heard_all_the_same(without_ipv6: None) -> None:
    with bound_everywhere(0) as server:
        assert server.family == socket.AF_INET
        server.listen()
        assert answers("127.0.0.1", server.getsockname()[1])


def test_clients_are_refused_until_it_listens() -> None:
    with bound_everywhere(0) as server:
        assert not answers("127.0.0.1", server.getsockname()[1])


def test_a_port_that_is_taken_is_an_error() -> None:
    with bound_everywhere(0) as first:
        first.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bound_everywhere(first.getsockname()[1])
