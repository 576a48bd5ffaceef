"""A server without an engine ends."""

import asyncio
from collections.abc import Iterable

import pytest
from aiohttp import web

from gymtrain_vllm.server_exit import Health, ask, watch
from tests.support.fake_vllm import free_port, serving

WELL, FAILED, CLOSED, UNKNOWN = Health.WELL, Health.FAILED, Health.CLOSED, Health.UNKNOWN


class OverError(Exception):
    """There is no more to ask."""


def exit_code(answers: Iterable[Health]) -> int | None:
    """What the server ends with; None where it goes on."""
    left, codes = iter(answers), list[int]()

    def next_answer() -> Health:
        try:
            return next(left)
        except StopIteration:
            raise OverError from None

    try:
        watch(next_answer, codes.append, lambda _: None)
    except OverError:
        return None
    return codes[0]


@pytest.mark.parametrize("gone", [FAILED, CLOSED])
def test_a_server_whose_engine_is_gone_is_ended(gone: Health) -> None:
    assert exit_code([UNKNOWN, WELL, *[gone] * 5]) == 71


@pytest.mark.parametrize("first", [FAILED, UNKNOWN])
def test_a_server_whose_engine_ended_before_anybody_saw_it_well_is_ended(first: Health) -> None:
    assert exit_code([CLOSED, CLOSED, first, *[CLOSED] * 5]) == 71


def test_the_first_looks_follow_each_other_closely() -> None:
    pauses: list[float] = []
    answers = iter([CLOSED, WELL, *[CLOSED] * 5])
    watch(lambda: next(answers), lambda _: None, pauses.append)
    assert max(pauses[:2]) < min(pauses[2:]) / 5


def test_a_server_that_starts_is_left_alone() -> None:
    assert exit_code([CLOSED] * 50) is None


def test_a_server_that_is_busy_is_left_to_its_probes() -> None:
    assert exit_code([WELL, *[UNKNOWN] * 50]) is None


def test_one_good_answer_makes_up_for_bad_ones() -> None:
    assert exit_code([WELL, *[FAILED] * 4, WELL, *[CLOSED] * 4]) is None


async def asked(status: int) -> Health:
    async def health(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app, port = web.Application(), free_port()
    app.add_routes([web.get("/health", health)])
    async with serving(app, "127.0.0.1", port):
        return await asyncio.to_thread(ask, port)


async def test_health_is_what_the_server_says() -> None:
    assert [await asked(status) for status in (200, 503, 404)] == [WELL, FAILED, UNKNOWN]


def test_a_closed_port_is_no_health() -> None:
    assert ask(free_port()) is CLOSED
