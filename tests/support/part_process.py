"""A part of a run as a process of its own, as its container starts it: `python -m PACKAGE`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

_ROOT = Path(__file__).parents[2]


def write_run_config(folder: Path, spec: Mapping[str, Any], **hosts: str) -> Path:
    """run.json of a run `run`; `hosts`: those that it has already."""
    nowhere = {"inference_url": "", "inference_pods_host": "", "trainer_host": ""}
    file = folder / "run.json"
    file.write_text(json.dumps({"name": "run", "namespace": "ns", "uid": "u", "spec": spec, **nowhere, **hosts}))
    return file


@asynccontextmanager
async def part(package: str, folders: Sequence[str], **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process, which is killed at the end. `folders` of the repository are what its image has."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(_ROOT / folder) for folder in folders), **environment}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", package, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes its pipe, too, while there is a loop


async def until_answered(http: aiohttp.ClientSession, url: str) -> None:
    """Asks until the answer is 200, for half a minute.

    Raises:
        TimeoutError: it never was.
    """
    async with asyncio.timeout(30):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
