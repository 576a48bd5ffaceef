"""At which address vLLM listens: all of the pod's, of both families where the host has them."""

import socket


def any_address() -> str:
    """Returns the address that means all: `::` where a socket of IPv6 takes IPv4 too without being asked, else 0.0.0.0.

    vLLM binds by itself, to an address of one family, and leaves IPV6_V6ONLY as the host has it (vLLM 0.32,
    `create_server_socket`).
    """
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            alone = tried.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            tried.bind(("::", 0))
    except OSError:
        alone = 1
    return "0.0.0.0" if alone else "::"  # noqa: S104 - a pod's only address
