"""The running operator: what it looks at, and what keeps it alive."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import httpx2 as httpx
import pytest

from gymtrain_api import labels
from gymtrain_operator import health as health_module
from gymtrain_operator import kinds, watching
from gymtrain_operator.cluster import Cluster, Object
from gymtrain_operator.errors import ClusterError, RejectedError
from gymtrain_operator.health import Health
from gymtrain_operator.kinds import Kind
from gymtrain_operator.leases import Leadership
from gymtrain_operator.queues import Key
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.service import Service
from tests.support.fakecluster import FakeCluster

LEASE = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15}}


def _silent_for_long() -> Health:
    health = Health.fresh()
    health.heard -= health_module.MAX_SILENCE_SECONDS + 1
    assert not health.alive
    return health


def _cluster(handler: Callable[[httpx.Request], httpx.Response], health: Health) -> Cluster:
    client = httpx.AsyncClient(base_url="https://api", transport=httpx.MockTransport(handler))
    return Cluster(client, "ns", health.hear)


@pytest.mark.parametrize(
    ("status", "alive"), [(200, True), (403, True), (404, True), (429, True), (401, False), (500, False), (503, False)]
)
async def test_an_answer_of_the_api_server_keeps_the_operator_alive(status: int, alive: bool) -> None:
    health = _silent_for_long()
    cluster = _cluster(lambda _: httpx.Response(status, json={}), health)
    with suppress(ClusterError):
        await cluster.get(kinds.POD, "ns", "p")
    assert health.alive is alive


async def test_a_standby_that_reads_the_lease_of_the_leader_is_alive() -> None:
    health = _silent_for_long()
    standby = Leadership(_cluster(lambda _: httpx.Response(200, json=LEASE), health), "sys", "me")
    waiting = asyncio.create_task(standby.acquire())
    await asyncio.sleep(0.05)
    waiting.cancel()
    assert health.alive


class _Recorder(Reconciler):
    """Runs that are looked at."""

    def __init__(self) -> None:
        self.seen: list[Key] = []

    def event(self, key: Key, resource_version: str = "") -> bool:
        self.seen.append(key)
        return True


class _WithoutRights(FakeCluster):
    """One namespace, named gone, was deleted with the operator's Role."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        if namespace == "gone":
            raise RejectedError("gymtrainingruns is forbidden in the namespace gone", final=False)
        return await super().list(kind, namespace, selector)


async def test_a_lost_namespace_leaves_the_others_looked_after() -> None:
    cluster, reconciler = _WithoutRights(), _Recorder()
    cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": {"name": "run", "namespace": "b"}})
    service = Service(cluster, reconciler, ["gone", "b"], Health.fresh())
    resync = asyncio.create_task(service._resync())
    await asyncio.sleep(0.05)
    resync.cancel()
    assert reconciler.seen == [("b", "run")]


def test_watches_that_are_refused_are_tried_again_without_end() -> None:
    pauses = watching.settings().networking.error_backoffs
    assert not isinstance(pauses, int | float)
    for _ in range(2):  # kopf begins anew for each request
        tries = list(islice(pauses, 1000))
        assert len(tries) == 1000
        assert max(tries) <= 60
