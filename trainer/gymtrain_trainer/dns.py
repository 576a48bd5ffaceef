"""DNS look-ups of pods. Each one asks again: pods come, go and change their addresses."""

import asyncio
import socket

_SECONDS = 5.0


def addresses(host: str, port: int) -> set[str]:
    """All addresses behind a name.

    Raises:
        socket.gaierror: it has none.
    """
    return {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}


async def pod_urls(host: str, port: int) -> list[str]:
    """URLs of all pods behind a headless Service, sorted; none while it has no address."""
    try:
        async with asyncio.timeout(_SECONDS):
            found = await asyncio.to_thread(addresses, host, port)
    except (OSError, TimeoutError):
        return []
    return sorted(f"http://{f'[{address}]' if ':' in address else address}:{port}" for address in found)
