"""Leader election."""

import itertools
from typing import Any

import pytest

from gymtrain_kube.errors import UnreachableError
from gymtrain_operator import kinds, leadership
from gymtrain_operator.errors import LostLeaseError
from gymtrain_operator.kinds import Kind
from gymtrain_operator.leadership import Leadership
from gymtrain_operator.lease import Fence, LeaseTimes
from tests.support.fake_kube_client import FakeKubeClient

TIMES = LeaseTimes(duration=6, renew_deadline=4.0, retry_period=1.0)


class Clock:
    """monotonic() and sleep() that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 10_000:
            raise AssertionError("waited for ever")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _replica(cluster: FakeKubeClient, identity: str, clock: Clock) -> Leadership:
    return Leadership(cluster, "sys", identity, TIMES, None, clock.monotonic, clock.sleep)


def _holder(cluster: FakeKubeClient) -> Any:
    return cluster.objects["Lease", "sys", leadership.NAME]["spec"]["holderIdentity"]


async def test_the_first_replica_leads(clock: Clock) -> None:
    cluster = FakeKubeClient()
    await _replica(cluster, "a", clock).acquire()
    assert _holder(cluster) == "a"


async def test_a_second_replica_waits_until_the_lease_stood_still_for_its_duration(clock: Clock) -> None:
    cluster = FakeKubeClient()
    await _replica(cluster, "a", clock).acquire()
    begin = clock.now
    await _replica(cluster, "b", clock).acquire()
    assert clock.now - begin == pytest.approx(TIMES.duration)
    assert _holder(cluster) == "b"
    assert cluster.objects["Lease", "sys", leadership.NAME]["spec"]["leaseTransitions"] == 2


async def test_a_released_lease_is_taken_at_once(clock: Clock) -> None:
    cluster = FakeKubeClient()
    first = _replica(cluster, "a", clock)
    await first.acquire()
    await first.release()
    begin = clock.now
    await _replica(cluster, "b", clock).acquire()
    assert clock.now == begin


async def test_a_leader_that_can_not_renew_stops_before_the_lease_expires(clock: Clock) -> None:
    cluster = FakeKubeClient()
    leader = _replica(cluster, "a", clock)
    await leader.acquire()
    cluster.fail["PUT Lease"] = UnreachableError("gone")
    begin = clock.now
    with pytest.raises(LostLeaseError):
        await leader.keep_renewing()
    assert clock.now - begin == pytest.approx(TIMES.renew_deadline)


async def test_a_leader_that_was_replaced_stops(clock: Clock) -> None:
    cluster = FakeKubeClient()
    leader = _replica(cluster, "a", clock)
    await leader.acquire()
    lease = cluster.objects["Lease", "sys", leadership.NAME]
    cluster.put(kinds.LEASE, lease | {"spec": lease["spec"] | {"holderIdentity": "b"}})
    with pytest.raises(LostLeaseError):
        await leader.keep_renewing()
    assert _holder(cluster) == "b"


async def test_a_lease_is_taken_when_it_expires_and_not_a_period_later(clock: Clock) -> None:
    cluster = FakeKubeClient()
    await _replica(cluster, "a", clock).acquire()
    begin = clock.now
    times = LeaseTimes(duration=6, renew_deadline=5.0, retry_period=4.0)
    await Leadership(cluster, "sys", "b", times, None, clock.monotonic, clock.sleep).acquire()
    assert clock.now - begin == pytest.approx(6)


class _SlowApi(FakeKubeClient):
    """What is asked of the Lease takes its time: a request before it is carried out, and an answer after that."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.before_get, self.after_put = 0.0, 0.0
        self.puts = 0

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Any:
        self._clock.now += self.before_get
        return await super().get(kind, namespace, name)

    async def replace(self, kind: Kind, manifest: Any, subresource: str = "") -> Any:
        self.puts += 1
        found = await super().replace(kind, manifest, subresource)
        self._clock.now += self.after_put
        return found


def _passes(fence: Fence) -> bool:
    try:
        fence.check()
    except LostLeaseError:
        return False
    return True


async def test_nothing_is_written_before_this_replica_leads(clock: Clock) -> None:
    fence = Fence(clock.monotonic)
    leader = Leadership(FakeKubeClient(), "sys", "a", TIMES, fence, clock.monotonic, clock.sleep)
    assert not _passes(fence)
    await leader.acquire()
    assert _passes(fence)


async def test_writes_end_before_the_first_moment_at_which_another_may_take_the_lease(clock: Clock) -> None:
    """By the time of the request: how long its answer took is not added."""
    cluster, fence = _SlowApi(clock), Fence(clock.monotonic)
    cluster.put(kinds.LEASE, {"kind": "Lease", "metadata": {"namespace": "sys", "name": leadership.NAME}, "spec": {}})
    asked = clock.now
    cluster.after_put = 1.5
    await Leadership(cluster, "sys", "a", TIMES, fence, clock.monotonic, clock.sleep).acquire()
    clock.now = asked + TIMES.renew_deadline - 0.01
    assert _passes(fence)
    clock.now = asked + TIMES.renew_deadline
    assert not _passes(fence)


async def test_each_renewal_lets_the_leader_write_for_longer(clock: Clock) -> None:
    cluster, fence = FakeKubeClient(), Fence(clock.monotonic)
    leader = Leadership(cluster, "sys", "a", TIMES, fence, clock.monotonic, clock.sleep)
    await leader.acquire()
    seen: list[bool] = []
    rounds = itertools.count()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append(_passes(fence))
        if next(rounds) == 20:
            cluster.fail["PUT Lease"] = UnreachableError("gone")

    leader._sleep = sleep
    with pytest.raises(LostLeaseError):
        await leader.keep_renewing()
    assert seen == [True] * (len(seen) - 1) + [False]
    assert len(seen) > 20


async def test_a_leader_that_was_stopped_in_the_middle_of_a_renewal_does_not_renew(clock: Clock) -> None:
    """It gives up, so others would wait in vain for as long as a Lease lasts."""
    cluster = _SlowApi(clock)
    leader = Leadership(cluster, "sys", "a", TIMES, None, clock.monotonic, clock.sleep)
    await leader.acquire()
    cluster.before_get = 30.0
    with pytest.raises(LostLeaseError):
        await leader.keep_renewing()
    assert cluster.puts == 0
