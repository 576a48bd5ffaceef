"""Sockets at all addresses, of both families where the host has them."""

import errno
import socket
from typing import Any

import pytest

from gymtrain_gym.server.listening import bound_everywhere


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was started with ipv6.disable=1."""

    class OnlyIPv4(socket.socket):
        def __init__(self, family: Any = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    monkeypatch.setattr("gymtrain_gym.server.listening.socket.socket", OnlyIPv4)


@needs_ipv6
def test_both_families_are_heard() -> None:
    with bound_everywhere(0) as server:
        server.listen()
        port = server.getsockname()[1]
        assert _answers("127.0.0.1", port)
        assert _answers("::1", port)


def test_a_host_without_ipv6_is_heard_all_the_same(without_ipv6: None) -> None:
    with bound_everywhere(0) as server:
        assert server.family == socket.AF_INET
        server.listen()
        assert _answers("127.0.0.1", server.getsockname()[1])


def test_clients_are_refused_until_it_listens() -> None:
    with bound_everywhere(0) as server:
        assert not _answers("127.0.0.1", server.getsockname()[1])


def test_a_port_that_is_taken_is_an_error() -> None:
    with bound_everywhere(0) as first:
        first.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bound_everywhere(first.getsockname()[1])
