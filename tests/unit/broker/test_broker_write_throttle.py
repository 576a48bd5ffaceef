"""Writes in the background give way to those that somebody waits for."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gymtrain_broker.throttled_client import WriteThrottle


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_fewer_run_at_once_while_writes_that_somebody_waits_for_are_slow_but_never_none() -> None:
    background = WriteThrottle(8, _Clock())
    allowed = []
    for _ in range(5):
        background.urgent_took(0.3)
        allowed.append(background.allowed())
    assert allowed == [4, 2, 1, 1, 1]


def test_more_run_again_step_by_step_when_those_are_fast_and_all_when_there_are_none() -> None:
    clock = _Clock()
    background = WriteThrottle(8, clock)
    for _ in range(3):
        background.urgent_took(0.3)
    for _ in range(8):
        background.urgent_took(0.01)
    assert background.allowed() == 3
    clock.now += 1.5
    assert background.allowed() == 8


async def test_a_turn_is_waited_for_and_taken_as_soon_as_another_ends() -> None:
    background = WriteThrottle(1, _Clock())
    async with AsyncExitStack() as first:
        await first.enter_async_context(background.turn())
        second = AsyncExitStack()
        waiting = asyncio.create_task(second.enter_async_context(background.turn()))
        await asyncio.sleep(0.02)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)
    await second.aclose()


async def test_who_gives_up_waiting_takes_no_turn() -> None:
    background = WriteThrottle(1, _Clock())
    async with background.turn():
        waiting = asyncio.create_task(AsyncExitStack().enter_async_context(background.turn()))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(1), background.turn():
        pass


def test_after_a_slow_write_all_count_as_slow_until_there_were_none_for_a_while() -> None:
    clock = _Clock()
    background = WriteThrottle(8, clock)
    background.urgent_took(0.01)
    assert not background.pressed()
    background.urgent_took(0.3)
    for _ in range(100):
        clock.now += 0.1
        background.urgent_took(0.01)
    assert background.pressed()
    clock.now += 1.5
    assert not background.pressed()
