"""A server without an engine ends."""

import asyncio
from collections.abc import Iterable

from aiohttp import web

from gymtrain_vllm.server_exit import Health, ask, watch
from tests.support.fake_vllm import free_port, serving

WELL, GONE, UNKNOWN = Health.WELL, Health.GONE, Health.UNKNOWN


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


def test_a_server_whose_engine_is_gone_is_ended() -> None:
    assert exit_code([UNKNOWN, WELL, *[GONE] * 5]) == 71


def test_a_server_that_starts_is_left_alone() -> None:
    assert exit_code([GONE] * 50) is None


def test_a_server_that_is_busy_is_left_to_its_probes() -> None:
    assert exit_code([WELL, *[UNKNOWN] * 50]) is None


def test_one_good_answer_makes_up_for_bad_ones() -> None:
    assert exit_code([WELL, *[GONE] * 4, WELL, *[GONE] * 4]) is None


async def asked(status: int) -> Health:
    async def health(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app, port = web.Application(), free_port()
    app.add_routes([web.get("/health", health)])
    async with serving(app, "127.0.0.1", port):
        return await asyncio.to_thread(ask, port)


async def test_health_is_what_the_server_says() -> None:
    assert [await asked(status) for status in (200, 503, 404)] == [WELL, GONE, UNKNOWN]


def test_a_closed_port_is_no_health() -> None:
    assert ask(free_port()) is GONE
