"""What tests of servers that listen at all addresses share: hosts with and without IPv6."""

import errno
import socket
from typing import Any

import pytest


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")


def answers(address: str, port: int) -> bool:
    """Whether somebody takes a connection there."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


class OnlyIPv4(socket.socket):
    """A socket of a kernel that was started with ipv6.disable=1."""

    def __init__(self, family: Any = -1, *rest: Any, **more: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *rest, **more)
