"""The vLLM pods of the run, asked of DNS anew each time: pods come, go and change their addresses."""

import asyncio
import socket
from dataclasses import dataclass

_DNS_SECONDS = 5.0


@dataclass(frozen=True, order=True)
class Pod:
    """One vLLM server."""

    url: str  # http://ADDRESS:PORT


async def resolve(host: str, port: int) -> list[Pod]:
    """All pods behind a headless Service, sorted; none while it has no address."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DNS_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return []
    addresses = {str(entry[4][0]) for entry in found}
    return sorted(Pod(f"http://{f'[{address}]' if ':' in address else address}:{port}") for address in addresses)
