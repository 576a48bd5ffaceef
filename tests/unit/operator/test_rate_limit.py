"""How often the API server is asked."""

import asyncio

import pytest

from gymtrain_operator.rate_limit import RateLimit


class _Clock:
    """Time that passes by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def __call__(self) -> float:
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


async def _seconds_of(limit: RateLimit, clock: _Clock, requests: int) -> float:
    began = clock.now
    for _ in range(requests):
        await limit.turn()
    return clock.now - began


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate(clock: _Clock) -> None:
    limit = RateLimit(10, 5, clock)
    assert await _seconds_of(limit, clock, 5) == 0
    assert await _seconds_of(limit, clock, 20) == pytest.approx(2.0)


async def test_a_quiet_time_earns_no_more_than_a_burst(clock: _Clock) -> None:
    limit = RateLimit(10, 5, clock)
    await _seconds_of(limit, clock, 5)
    clock.now += 3600
    assert await _seconds_of(limit, clock, 5) == 0
    assert await _seconds_of(limit, clock, 10) == pytest.approx(1.0)


async def test_all_wait_as_long_as_the_api_server_wants(clock: _Clock) -> None:
    limit = RateLimit(10, 5, clock)
    limit.rest(7)
    assert await limit.turn() == pytest.approx(7)


async def test_those_who_waited_dont_all_go_at_once_after_that(clock: _Clock) -> None:
    limit = RateLimit(10, 5, clock)
    limit.rest(7)
    assert await _seconds_of(limit, clock, 11) == pytest.approx(8.0)


async def test_a_proxys_long_wish_holds_up_others_for_half_a_minute_at_most(clock: _Clock) -> None:
    limit = RateLimit(10, 5, clock)
    limit.rest(300)
    assert await limit.turn() == pytest.approx(30)
