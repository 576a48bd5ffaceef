"""One command in a sandbox, and 50 in a row: by our daemon, by the API server's exec, by kubectl."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable

import aiohttp

from benchmarks.sandboxes import ours
from benchmarks.sandboxes.kube import Kube
from benchmarks.sandboxes.load import Held, percentile
from benchmarks.sandboxes.places import IMAGE, REAL, namespace
from benchmarks.sandboxes.sheet import Figure
from tests.support.apiserver import binary

type Exec = Callable[[list[str]], Awaitable[int]]

_ACTIONS = 50
_TRUE = ["true"]
_ACTION = ["sh", "-c", "cd /testbed && git status --short | wc -l"]  # a small one of an agent


class ExecError(Exception):
    """A command did not do what it does."""


async def by_daemon(http: aiohttp.ClientSession, held: Held, command: list[str]) -> int:
    """The exit code; output is read and dropped."""
    headers = {"Authorization": f"Bearer {held.token}"}
    code: int | None = None
    async with http.post(f"{held.url}/v1/exec", json={"command": command}, headers=headers) as answer:
        async for line in answer.content:
            event = json.loads(line)
            if event["t"] == "exit":
                code = int(event["code"])
    if code is None:
        raise ExecError(f"{command} in {held.pod}: HTTP {answer.status}, no exit code")
    return code


async def measure(kube: Kube) -> list[Figure]:
    """All three ways into one and the same sandbox, a warm one."""
    pools = [{"image": IMAGE, "replicas": 1}]
    async with namespace(kube, "bench-ours") as space, ours.broker(kube, space, REAL, warmPools=pools) as broker:
        held = await broker.claim()

        async def daemon(command: list[str]) -> int:
            return await by_daemon(broker.http, held, command)

        async def api(command: list[str]) -> int:
            return await kube.exec(space, held.pod, "sandbox", command)

        async def kubectl(command: list[str]) -> int:
            words = [str(binary("kubectl")), "exec", f"--namespace={space}", held.pod, "--container=sandbox", "--"]
            process = await asyncio.create_subprocess_exec(*words, *command, stdout=asyncio.subprocess.DEVNULL)
            return await process.wait()

        ways: dict[str, Exec] = {"ours": daemon, "API server's exec": api, "kubectl exec": kubectl}
        single = {
            name: await _each(way, _TRUE, 4 * _ACTIONS if name == "ours" else _ACTIONS) for name, way in ways.items()
        }
        load = {name: os.getloadavg()[0] for name in ways}
        row = {name: sum(await _each(way, _ACTION, _ACTIONS)) for name, way in ways.items()}
        work = await _inside(kube, space, held)
        await broker.close(held)
        whole = await _trajectory(broker)
    return [
        *(
            Figure(
                f"exec of `true`: p{part}",
                "ms",
                {name: percentile(all_, part) * 1000 for name, all_ in single.items()},
                5 if part == 50 else None,
                load,
            )
            for part in (50, 95, 99)
        ),
        Figure(f"{_ACTIONS} actions in a row", "s", row, None, load),
        Figure("of it the commands' own work", "s", dict.fromkeys(row, work)),
        Figure("what is above it", "s", {name: seconds - work for name, seconds in row.items()}, 1),
        Figure(f"claim, {_ACTIONS} actions, close", "s", {"ours": whole}),
    ]


async def _each(way: Exec, command: list[str], count: int) -> list[float]:
    await way(command)  # connections are there, the page cache is warm
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        if await way(command) != 0:
            raise ExecError(f"{command} failed")
        seconds.append(time.perf_counter() - began)
    return seconds


async def _inside(kube: Kube, space: str, held: Held) -> float:
    """Seconds that the commands take where nobody is asked: a loop in the sandbox, less what an empty loop takes."""
    action = " ".join(f"'{word}'" for word in _ACTION)

    async def loop(body: str) -> float:
        began = time.perf_counter()
        text = f"i=0; while [ $i -lt {_ACTIONS} ]; do {body} >/dev/null; i=$((i+1)); done"
        if await kube.exec(space, held.pod, "sandbox", ["sh", "-c", text]) != 0:
            raise ExecError("the loop in the sandbox failed")
        return time.perf_counter() - began

    empty = await loop(":")
    return max(0.0, await loop(action) - empty)


async def _trajectory(broker: ours.Ours) -> float:
    """As an agent sees it."""
    while await broker.ready() < 1:  # noqa: ASYNC110  the broker tells it nowhere else
        await asyncio.sleep(0.2)
    began = time.perf_counter()
    held = await broker.claim()
    for _ in range(_ACTIONS):
        await by_daemon(broker.http, held, _ACTION)
    await broker.close(held)
    return time.perf_counter() - began
