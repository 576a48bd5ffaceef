"""When a server that was told to stop may stop, and what its clients are told meanwhile."""

import asyncio
from typing import Any

import pytest

from gymtrain_gym.server.draining import MIN_SECONDS, QUIET_SECONDS, Drain, DrainMiddleware

pytestmark = pytest.mark.gym


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def drain(clock: Clock) -> Drain:
    return Drain(25.0, close_connections=True, clock=clock)


def test_runs_on_without_a_signal(drain: Drain, clock: Clock) -> None:
    clock.now += 1000
    assert not drain.over()


def test_idle_server_stays_until_its_service_forgets_it(drain: Drain, clock: Clock) -> None:
    drain.begin()
    clock.now += MIN_SECONDS - 0.1
    assert not drain.over()
    clock.now += 0.2
    assert drain.over()


def test_waits_for_requests_in_flight(drain: Drain, clock: Clock) -> None:
    drain.request_started()
    drain.begin()
    clock.now += 20
    assert not drain.over()


def test_waits_for_the_next_call_of_a_rollout(drain: Drain, clock: Clock) -> None:
    drain.begin()
    clock.now += 10
    drain.request_started()
    drain.request_ended()
    clock.now += QUIET_SECONDS - 0.1
    assert not drain.over()
    clock.now += 0.2
    assert drain.over()


def test_stops_at_the_deadline_in_any_case(drain: Drain, clock: Clock) -> None:
    drain.request_started()
    drain.begin()
    clock.now += 25
    assert drain.over()


async def call(drain: Drain, path: str = "/run") -> list[tuple[bytes, bytes]]:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert drain.in_flight == (path != "/")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.sleep(0)

    await DrainMiddleware(app, drain)({"type": "http", "path": path}, receive, send)
    headers: list[tuple[bytes, bytes]] = sent[0]["headers"]
    return headers


async def test_clients_keep_their_connection_before_the_drain(drain: Drain) -> None:
    assert await call(drain) == []


async def test_clients_are_sent_to_another_pod_during_the_drain(drain: Drain) -> None:
    drain.begin()
    assert await call(drain) == [(b"connection", b"close")]


async def test_clients_of_a_server_with_sessions_keep_their_connection(clock: Clock) -> None:
    drain = Drain(25.0, close_connections=False, clock=clock)
    drain.begin()
    assert await call(drain) == []


async def test_probes_do_not_prolong_the_drain(drain: Drain, clock: Clock) -> None:
    drain.begin()
    clock.now += 10
    await call(drain, path="/")
    assert drain.over()
