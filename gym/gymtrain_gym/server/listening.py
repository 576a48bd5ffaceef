"""The socket of a Gym server: at all addresses of its pod, IPv4 and IPv6, or IPv4 alone where the host has no IPv6."""

import errno
import socket

_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT, errno.EPROTONOSUPPORT}


def bound_everywhere(port: int) -> socket.socket:
    """Returns a TCP socket that is bound to a port, and doesn't listen yet: clients are refused until then.

    Raises:
        OSError: the port is taken, or can't be bound.
    """
    try:
        return bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return bound(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - a pod's only address


def bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """Returns such a socket at one address; one of IPv6 takes IPv4 too, where the address is `::`.

    Raises:
        OSError: it can't be bound.
    """
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
