"""What stands in for Ray where a server only waits in its workers."""

import contextvars
import threading

import pytest

from gymtrain_gym.server import ray_modes

pytestmark = pytest.mark.gym


def test_calls_run_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def meet(number: int) -> int:
        barrier.wait()
        return number

    meeting = ray_modes.remote(scheduling_strategy="SPREAD", runtime_env={})(meet)
    assert ray_modes.get([meeting.options(num_cpus=1).remote(number) for number in range(3)]) == [0, 1, 2]


async def test_a_result_can_be_awaited() -> None:
    @ray_modes.remote
    def add(a: int, b: int) -> int:
        return a + b

    assert await add.remote(1, b=2) == 3


def test_an_error_reaches_whoever_asks() -> None:
    @ray_modes.remote
    def fail() -> None:
        raise ValueError("as it was")

    with pytest.raises(ValueError, match="as it was"):
        ray_modes.get(fail.remote())


def test_a_wait_has_its_deadline() -> None:
    go_on = threading.Event()
    waiting = ray_modes.remote(lambda: go_on.wait(20)).remote()
    with pytest.raises(TimeoutError):
        ray_modes.get(waiting, timeout=0.01)
    go_on.set()


def test_actors_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Counter is a Ray actor"):

        @ray_modes.remote
        class Counter:
            pass


def test_a_server_that_stops_waits_for_no_call() -> None:
    go_on = threading.Event()
    waiting = ray_modes.remote(lambda: go_on.wait(20)).remote()
    ray_modes.abandon()
    with pytest.raises(RuntimeError, match="stopped before the call ended"):
        ray_modes.get(waiting)
    go_on.set()


def test_a_call_knows_the_request_that_it_is_for() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    name.set("this one")
    assert ray_modes.get(ray_modes.remote(name.get).remote()) == "this one"
