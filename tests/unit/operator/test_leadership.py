"""Leader election."""

from typing import Any

import pytest

from gymtrain_kube.errors import UnreachableError
from gymtrain_operator import kinds, leadership
from gymtrain_operator.leadership import Leadership, LostLeaseError
from tests.support.fake_kube_client import FakeKubeClient


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
    return Leadership(cluster, "sys", identity, clock.monotonic, clock.sleep)


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
    assert clock.now - begin > leadership.DURATION_SECONDS
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
    assert clock.now - begin < leadership.DURATION_SECONDS


async def test_a_leader_that_was_replaced_stops(clock: Clock) -> None:
    cluster = FakeKubeClient()
    leader = _replica(cluster, "a", clock)
    await leader.acquire()
    lease = cluster.objects["Lease", "sys", leadership.NAME]
    cluster.put(kinds.LEASE, lease | {"spec": lease["spec"] | {"holderIdentity": "b"}})
    with pytest.raises(LostLeaseError):
        await leader.keep_renewing()
    assert _holder(cluster) == "b"
