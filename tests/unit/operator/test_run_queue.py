"""The queue of runs."""

import asyncio
from contextvars import ContextVar

from gymtrain_operator.run_queue import RunKey, RunQueue

A: RunKey = ("ns", "a")
B: RunKey = ("ns", "b")


async def _drain(queue: RunQueue) -> list[RunKey]:
    found: list[RunKey] = []
    while True:
        try:
            async with asyncio.timeout(0.05):
                key = await queue.take()
        except TimeoutError:
            return found
        found.append(key)
        queue.finish(key)


async def test_a_run_waits_once_however_often_it_is_named() -> None:
    queue = RunQueue()
    for key in (A, B, A, A):
        queue.add(key)
    assert await _drain(queue) == [A, B]


async def test_a_run_that_is_worked_on_is_not_given_to_a_second_worker_but_looked_at_again() -> None:
    queue = RunQueue()
    queue.add(A)
    key = await queue.take()
    queue.add(A)
    assert await _drain(queue) == []
    queue.finish(key)
    assert await _drain(queue) == [A]


async def test_the_soonest_promise_counts() -> None:
    queue = RunQueue()
    queue.add(A, after=30)
    queue.add(A, after=0.01)
    queue.add(A, after=30)
    await asyncio.sleep(0.03)
    assert await _drain(queue) == [A]


async def test_an_event_now_takes_the_place_of_a_promise() -> None:
    queue = RunQueue()
    queue.add(A, after=0.02)
    queue.add(A)
    assert await _drain(queue) == [A]
    await asyncio.sleep(0.03)
    assert await _drain(queue) == []


async def test_a_promise_keeps_nothing_of_the_context_in_which_it_is_made() -> None:
    """kopf's context has the whole object in it: 10,000 runs that waited for their first look held 400 MB."""
    queue = RunQueue()
    context: ContextVar[str] = ContextVar("context")
    context.set("kopf's")
    queue.add(A, after=30)
    assert context not in queue._timers[A].get_context()
