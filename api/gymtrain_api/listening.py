"""Listening at all addresses of a pod: IPv4 and IPv6 by one socket, or IPv4 alone where the kernel has no IPv6.

In a cluster of both families, Services and probes may reach a pod by either of its addresses; in one of IPv6 alone a
server at 0.0.0.0 is never reached.
"""

import errno
import socket

_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT, errno.EPROTONOSUPPORT}


def bound_everywhere(port: int) -> socket.socket:
    """Returns a TCP socket that is bound to a port at all addresses, and doesn't listen yet.

    Raises:
        OSError: the port is taken, or can't be bound.
    """
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return _bound(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - a pod's only address


def any_address() -> str:
    """Returns the address that means all, for a server that binds by itself to an address of one family: `::` where
    a socket of it takes IPv4 too without being asked, else 0.0.0.0."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            alone = tried.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            tried.bind(("::", 0))
    except OSError:
        alone = 1
    return "0.0.0.0" if alone else "::"  # noqa: S104 - as above


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made
