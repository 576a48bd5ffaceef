"""Waiting, for the tests of the weights. A minute and more: a busy machine stands still for seconds."""

import asyncio
from collections.abc import Callable


async def on_main_thread[T](work: Callable[[], T]) -> T:
    """What the trainer's main thread does, beside the servers of the test."""
    return await asyncio.wait_for(asyncio.to_thread(work), 90)


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - those that change it have no event to wait for
            await asyncio.sleep(0.01)
