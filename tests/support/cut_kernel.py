"""What the kernel delivers of a write after its network was cut and healed.

`unshare --net python -m tests.support.cut_kernel SECONDS stopped|ended`, as root: SECONDS is the client's
`unacknowledged_seconds`, or `none`; the client is stopped, or ends, while the network is cut. Prints the paths that the
server was asked for, as JSON. The network is one of its own, and the cut is made by nftables.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys

from aiohttp import web

from gymtrain_kube.access import Access
from gymtrain_kube.client import RestClient

_PORT = 8001
_CUT_SECONDS = 3.0
# Of a kernel that sends again after 0.2 s, 0.4 s, 0.8 s and so on: the next time after the cut, and some.
_AFTER_SECONDS = 6.0
_CUT = f"""
table inet cut {{
  chain input {{
    type filter hook input priority 0
    tcp dport {_PORT} drop
    tcp sport {_PORT} drop
  }}
}}
"""


async def _client(seconds: float | None, *, ends: bool) -> None:
    client = RestClient(Access(f"http://127.0.0.1:{_PORT}"), unacknowledged_seconds=seconds)
    await client.create("/before", {})
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    late = asyncio.create_task(client.create("/during", {}))
    await asyncio.sleep(0.3)
    print("sent", flush=True)
    if ends:
        os._exit(0)
    await late


async def _nft(rules: str) -> None:
    nft = await asyncio.create_subprocess_exec("nft", "-f", "-", stdin=asyncio.subprocess.PIPE)
    await nft.communicate(rules.encode())
    assert nft.returncode == 0


async def _server(arguments: list[str]) -> list[str]:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", _PORT).start()
    command = [sys.executable, "-m", "tests.support.cut_kernel", *arguments, "client"]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert client.stdin
    assert client.stdout
    await client.stdout.readline()
    await _nft(_CUT)
    client.stdin.write(b"go\n")
    await client.stdout.readline()
    if client.returncode is None and arguments[1] == "stopped":
        client.send_signal(signal.SIGSTOP)
    await asyncio.sleep(_CUT_SECONDS)
    await _nft("delete table inet cut")
    await asyncio.sleep(_AFTER_SECONDS)
    if client.returncode is None:
        client.kill()
    await client.wait()
    return asked


def main() -> None:
    """Plays the client or the server."""
    seconds, how, *client = sys.argv[1:]
    if client:
        asyncio.run(_client(None if seconds == "none" else float(seconds), ends=how == "ended"))
    else:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        print(json.dumps(asyncio.run(_server([seconds, how]))))


if __name__ == "__main__":
    main()
