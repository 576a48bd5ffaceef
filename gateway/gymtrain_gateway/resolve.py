"""Addresses behind a headless Service."""

import asyncio
import socket

_SECONDS = 5.0
_NO_ADDRESS = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


async def resolve(host: str, port: int) -> list[str] | None:
    """URLs of all pods, sorted; none where DNS says that there is none. None: DNS doesn't answer, nothing is known."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return [] if error.errno in _NO_ADDRESS else None
    except (OSError, TimeoutError):
        return None
    addresses = {str(entry[4][0]) for entry in found}
    return sorted(f"http://{f'[{address}]' if ':' in address else address}:{port}" for address in addresses)
