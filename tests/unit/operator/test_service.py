"""The running operator: what it looks at, and what keeps it alive."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from aiohttp import web

from gymtrain_api import labels
from gymtrain_api.times import to_seconds
from gymtrain_kube.errors import KubeError, RejectedError, UnreachableError
from gymtrain_kube.objects import Object
from gymtrain_operator import health as health_module
from gymtrain_operator import kinds, metrics, selected_namespaces, watching
from gymtrain_operator import service as service_module
from gymtrain_operator.errors import BadSelectorError, LostLeaseError
from gymtrain_operator.health import Health
from gymtrain_operator.kinds import Kind
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.leadership import Leadership
from gymtrain_operator.observe import Observer
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.run_queue import RunKey
from gymtrain_operator.selected_namespaces import SelectedNamespaces
from gymtrain_operator.service import Service
from gymtrain_operator.watching import Ended, end_of
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.scripted_api import ScriptedApi
from tests.support.world import DEFAULTS, spec

LEASE = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15}}


def _silent_for_long() -> Health:
    health = Health()
    health.heard -= health_module.MAX_SILENCE_SECONDS + 1
    assert not health.alive
    return health


@asynccontextmanager
async def _heard(api: ScriptedApi, health: Health) -> AsyncIterator[KubeClient]:
    """A client whose answers are signs of life."""
    client = KubeClient(api.access, health.hear)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("status", "alive"), [(200, True), (403, True), (404, True), (429, True), (401, False), (500, False), (503, False)]
)
async def test_an_answer_of_the_api_server_keeps_the_operator_alive(api: ScriptedApi, status: int, alive: bool) -> None:
    health = _silent_for_long()
    api.answer({}, status=status)
    async with _heard(api, health) as kube:
        with suppress(KubeError):
            await kube.get(kinds.POD, "ns", "p")
    assert health.alive is alive


async def test_a_standby_that_reads_the_lease_of_the_leader_is_alive(api: ScriptedApi) -> None:
    health = _silent_for_long()
    api.answer(LEASE)
    async with _heard(api, health) as kube:
        waiting = asyncio.create_task(Leadership(kube, "sys", "me").acquire())
        async with asyncio.timeout(10):
            while not health.alive:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
        waiting.cancel()
    assert api.request.path.endswith("/leases/gymtrain-operator")


class _Recorder(Reconciler):
    """Runs that are looked at."""

    def __init__(self) -> None:
        self.seen: list[RunKey] = []

    def event(self, key: RunKey, resource_version: str = "") -> bool:
        self.seen.append(key)
        return True

    def known(self, namespace: str | None) -> set[RunKey]:
        return set()

    def is_settled(self, key: RunKey, resource_version: str) -> bool:
        return False


class _WithoutRights(FakeKubeClient):
    """One namespace, named gone, was deleted with the operator's Role."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        if namespace == "gone":
            raise RejectedError("gymtrainingruns is forbidden in the namespace gone", final=False)
        return await super().list(kind, namespace, selector)


async def test_a_lost_namespace_leaves_the_others_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "RESYNC_SECONDS", 0.01)
    cluster, reconciler = _WithoutRights(), _Recorder()
    cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": {"name": "run", "namespace": "b"}})
    service = Service(cluster, reconciler, ["gone", "b"], Health())
    resync = asyncio.create_task(service._resync())
    await asyncio.sleep(0.05)
    resync.cancel()
    assert set(reconciler.seen) == {("b", "run")}


def _ended(name: str) -> Object:
    meta = {"name": name, "namespace": "ns", "generation": 1}
    now = "2027-01-15T08:00:00Z"
    conditions = [{"type": "Complete", "status": "True", "reason": "TrainingCompleted", "lastTransitionTime": now}]
    status = {"observedGeneration": 1, "state": "Complete", "conditions": conditions}
    return {"kind": labels.KIND, "metadata": meta, "spec": spec(), "status": status}


def _service(cluster: FakeKubeClient, session: aiohttp.ClientSession) -> tuple[Service, Reconciler]:
    observer = Observer(cluster, session, DEFAULTS)
    reconciler = Reconciler(cluster, observer, DEFAULTS, lambda: 1_800_000_000.0)
    return Service(cluster, reconciler, [], Health()), reconciler


async def test_an_ended_run_is_looked_at_once_and_then_left_alone_by_every_resync(
    session: aiohttp.ClientSession,
) -> None:
    cluster = FakeKubeClient()
    cluster.put(kinds.RUN, _ended("run"))
    service, reconciler = _service(cluster, session)
    assert await reconciler.reconcile(("ns", "run")) is None
    cluster.reads = 0
    assert await service._list(None)
    assert (cluster.reads, len(service._queue._timers)) == (1, 0), "more than the list of versions was read"
    service.enqueue(("ns", "run"))
    assert not service._queue._timers, "an event about what it owned woke it"
    service.enqueue(("ns", "run"), "another")
    assert service._queue._timers, "a change of its own did not"


async def test_runs_that_ended_before_the_start_wait_for_those_that_go_on(session: aiohttp.ClientSession) -> None:
    cluster = FakeKubeClient()
    service, _ = _service(cluster, session)
    loop = asyncio.get_running_loop()
    for number in range(100):
        ended = cluster.put(kinds.RUN, _ended(f"ended-{number}"))
        meta = ended["metadata"]
        key, end = (meta["namespace"], meta["name"]), end_of(meta, ended["spec"], ended["status"])
        service.enqueue(key, meta["resourceVersion"], end)
        service.enqueue(key)  # its Job, which stays
    service.enqueue(("ns", "going-on"), "7")
    soon = {key[1] for key, timer in service._queue._timers.items() if timer.when() - loop.time() < 1}
    assert "going-on" in soon
    assert len(soon) <= 10, "a restart looks at all ended runs at once"


_DAY_SECONDS = 86_400.0


def _waits(service: Service) -> dict[str, float]:
    """Seconds until each run that waits is looked at, by name."""
    now = asyncio.get_running_loop().time()
    return {key[1]: timer.when() - now for key, timer in service._queue._timers.items()}


def _tell(service: Service, name: str, ended_ago: float | None, lives: float | None = None) -> None:
    """A run that ended so many seconds ago, and has so many to live."""
    now = time.time()
    at = None if ended_ago is None else now - ended_ago
    service.enqueue(("ns", name), "7", Ended("Complete", at, None if lives is None else now + lives))


async def test_runs_that_ended_long_ago_are_looked_at_one_a_second_in_the_order_in_which_they_come(
    session: aiohttp.ClientSession,
) -> None:
    service, _ = _service(FakeKubeClient(), session)
    began = time.monotonic()
    for number in range(1000):
        _tell(service, str(number), 2 * _DAY_SECONDS)
    waits = _waits(service)
    took = time.monotonic() - began  # a busy machine takes a second to tell of them
    for number in range(1000):
        assert number + 1 - took <= waits[str(number)] <= number + 1


async def test_the_turns_of_runs_that_ended_long_ago_begin_anew_after_a_pause(session: aiohttp.ClientSession) -> None:
    service, _ = _service(FakeKubeClient(), session)
    service._next_turn = time.monotonic() - 3600
    began = time.monotonic()
    _tell(service, "late", 2 * _DAY_SECONDS)
    waits = _waits(service)["late"]
    assert 1 - (time.monotonic() - began) <= waits <= 1


@pytest.mark.parametrize("ended_ago", [60.0, _DAY_SECONDS - 60, None])
async def test_runs_that_ended_lately_or_nobody_knows_when_do_not_wait_for_turns(
    session: aiohttp.ClientSession, ended_ago: float | None
) -> None:
    service, _ = _service(FakeKubeClient(), session)
    for number in range(1000):
        _tell(service, str(number), ended_ago)
    assert max(_waits(service).values()) <= 300


async def test_a_run_whose_time_to_live_ends_before_its_turn_is_looked_at_then(session: aiohttp.ClientSession) -> None:
    service, _ = _service(FakeKubeClient(), session)
    for number in range(1000):
        _tell(service, str(number), 2 * _DAY_SECONDS, lives=10 * _DAY_SECONDS)
    _tell(service, "short", 2 * _DAY_SECONDS, lives=500)
    assert _waits(service)["short"] == pytest.approx(500, abs=1)


async def test_runs_whose_time_to_live_is_over_are_looked_at_within_five_minutes(
    session: aiohttp.ClientSession,
) -> None:
    service, _ = _service(FakeKubeClient(), session)
    for number in range(1000):
        _tell(service, str(number), 2 * _DAY_SECONDS, lives=-1)
    waits = _waits(service).values()
    assert max(waits) <= 300
    assert sum(wait < 10 for wait in waits) < 100, "all at once"


async def test_a_change_of_a_run_that_waits_for_its_turn_is_looked_at_soon(session: aiohttp.ClientSession) -> None:
    service, _ = _service(FakeKubeClient(), session)
    for number in range(100):
        _tell(service, str(number), 2 * _DAY_SECONDS)
    service.enqueue(("ns", "99"), "8", Ended("Complete", time.time() - 2 * _DAY_SECONDS))
    assert _waits(service)["99"] < 1


_BEGINNING = "2027-01-15T08:00:00Z"
_END = "2027-01-15T09:00:00Z"


def _end(**fields: object) -> Ended | None:
    """The end of a run with these fields, `ttl` in its spec and the others in its status."""
    run_spec = {"ttlSecondsAfterFinished": fields.pop("ttl")} if "ttl" in fields else {}
    condition = {"type": "Failed", "status": "True", "lastTransitionTime": _BEGINNING}
    status = {"observedGeneration": 1, "state": "Failed", "conditions": [condition], **fields}
    return end_of({"generation": 1}, run_spec, status)


def test_a_run_ended_when_it_was_complete_or_when_its_status_said_so_first() -> None:
    began, ended = to_seconds(_BEGINNING), to_seconds(_END)
    assert _end() == Ended("Failed", began)
    assert _end(completionTime=_END) == Ended("Failed", ended)
    assert _end(completionTime="2027-01-15T07:00:00Z") == Ended("Failed", began)


def test_a_run_lives_for_as_long_as_it_says_itself_or_else_as_the_defaults_that_it_was_made_with_say() -> None:
    at = to_seconds(_BEGINNING)
    assert at is not None
    defaults = {"ttlSecondsAfterFinished": 600}
    assert _end(ttl=0, defaults=defaults) == Ended("Failed", at, at)
    assert _end(defaults=defaults) == Ended("Failed", at, at + 600)


@pytest.mark.parametrize("wrong", ["soon", {}, [], None, -1.5, True])
def test_an_end_with_values_that_nobody_can_read_is_none_that_is_known(wrong: object) -> None:
    at = to_seconds(_BEGINNING)
    condition = {"type": "Failed", "status": "True", "lastTransitionTime": wrong}
    assert _end(completionTime=wrong, conditions=[condition], ttl=60) == Ended("Failed")
    assert _end(ttl=wrong) == _end(defaults=wrong) == Ended("Failed", at)
    assert _end(defaults={"ttlSecondsAfterFinished": wrong}) == Ended("Failed", at)


async def test_a_run_whose_deletion_nobody_told_is_forgotten(session: aiohttp.ClientSession) -> None:
    cluster = FakeKubeClient()
    cluster.put(kinds.RUN, _ended("run"))
    service, reconciler = _service(cluster, session)
    await reconciler.reconcile(("ns", "run"))
    cluster.objects.clear()
    await service._list(None)
    assert await asyncio.wait_for(service._queue.take(), 1) == ("ns", "run")
    await reconciler.reconcile(("ns", "run"))
    assert reconciler.known(None) == set()


class _Labelled(FakeKubeClient):
    """Its namespaces that match, and what is told of them later."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.matching = frozenset(names)
        self.news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.refusals: list[KubeError] = []

    async def names(self, kind: Kind, selector: str) -> tuple[frozenset[str], str]:
        if self.refusals:
            raise self.refusals.pop()
        return self.matching, "1"

    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str
    ) -> AsyncGenerator[tuple[str, Object]]:
        yield "BOOKMARK", {"metadata": {"resourceVersion": "2"}}
        while True:
            event, name = await self.news.get()
            yield event, {"metadata": {"name": name}}


@asynccontextmanager
async def _selecting(cluster: _Labelled, session: aiohttp.ClientSession) -> AsyncIterator[tuple[Service, Reconciler]]:
    """A service that knows the namespaces."""
    selected = SelectedNamespaces(cluster, "canary")
    reconciler = Reconciler(cluster, Observer(cluster, session, DEFAULTS), DEFAULTS, lambda: 1_800_000_000.0)
    service = Service(cluster, reconciler, [], Health(), selected=selected)
    following = asyncio.create_task(selected.follow(service._look_again))
    await asyncio.wait_for(selected.began.wait(), 10)
    yield service, reconciler
    following.cancel()


async def test_runs_of_namespaces_without_the_labels_are_passed_over(session: aiohttp.ClientSession) -> None:
    cluster = _Labelled("ours")
    cluster.put(kinds.RUN, _ended("run"))
    async with _selecting(cluster, session) as (service, reconciler):
        service.enqueue(("ns", "run"), "7")
        assert await service._list(None)
        await service._reconcile(("ns", "run"))  # what waited when the labels went
        assert (service._queue._timers, reconciler.known(None)) == ({}, set())
        service.enqueue(("ours", "run"), "7")
        assert list(service._queue._timers) == [("ours", "run")]


async def test_a_namespace_that_gets_the_labels_has_its_runs_looked_at_and_one_that_loses_them_has_them_forgotten(
    session: aiohttp.ClientSession,
) -> None:
    cluster = _Labelled()
    cluster.put(kinds.RUN, _ended("run"))
    async with _selecting(cluster, session) as (service, reconciler):
        work = asyncio.create_task(service._work())
        cluster.news.put_nowait(("ADDED", "ns"))
        async with asyncio.timeout(10):
            while not reconciler.knows(("ns", "run")):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
            cluster.news.put_nowait(("MODIFIED", "ns"))
            cluster.news.put_nowait(("DELETED", "ns"))
            while reconciler.knows(("ns", "run")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        work.cancel()


async def test_who_may_not_list_namespaces_tries_again(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selected_namespaces, "_PAUSE_SECONDS", 0.01)
    cluster = _Labelled("ns")
    cluster.refusals = [RejectedError("namespaces is forbidden", final=False), UnreachableError("late")]
    async with _selecting(cluster, session) as (service, _):
        assert service._is_ours(("ns", "run"))


async def test_an_operator_that_does_not_know_its_namespaces_does_not_say_that_it_looked_at_all_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The alert GymtrainOperatorStuck stands on it."""
    monkeypatch.setattr(service_module, "RESYNC_SECONDS", 0.01)
    monkeypatch.setattr(metrics, "RESYNC_TIME", told := Mock())
    cluster = _Labelled()
    selected = SelectedNamespaces(cluster, "canary")
    service = Service(cluster, _Recorder(), [], Health(), selected=selected)
    resync = asyncio.create_task(service._resync())
    await asyncio.sleep(0.05)
    assert not told.set_to_current_time.called
    selected.began.set()
    await asyncio.sleep(0.05)
    resync.cancel()
    assert told.set_to_current_time.called


async def test_what_is_no_selector_ends_the_process() -> None:
    cluster = _Labelled()
    cluster.refusals = [RejectedError("unable to parse requirement", final=True)]
    with pytest.raises(BadSelectorError, match="--namespace-selector=a in b: unable to parse"):
        await SelectedNamespaces(cluster, "a in b").follow(AsyncMock())


class _Busy(Reconciler):
    """An API server that says when to come again."""

    def __init__(self) -> None:
        self.looks = 0

    def event(self, key: RunKey, resource_version: str = "") -> bool:
        return True

    async def reconcile(self, key: RunKey) -> float | None:
        self.looks += 1
        raise UnreachableError("HTTP 429", retry_after=3600.0)


async def test_no_event_brings_a_run_back_before_the_api_server_asked_for_it() -> None:
    reconciler = _Busy()
    service = Service(FakeKubeClient(), reconciler, [], Health())
    work = asyncio.create_task(service._work())
    for _ in range(3):
        service._queue.add(("ns", "run"))
        await asyncio.sleep(0.05)
    work.cancel()
    assert reconciler.looks == 1


class _Late(_Busy):
    """A write is kept back."""

    async def reconcile(self, key: RunKey) -> float | None:
        raise LostLeaseError("over")


async def test_a_write_that_came_too_late_ends_the_process_and_is_not_tried_again() -> None:
    service = Service(FakeKubeClient(), _Late(), [], Health())
    service._queue.add(("ns", "run"))
    with pytest.raises(LostLeaseError):
        await asyncio.wait_for(service._work(), 10)


def test_watches_that_are_refused_are_tried_again_without_end() -> None:
    pauses = watching.settings().networking.error_backoffs
    assert not isinstance(pauses, int | float)
    for _ in range(2):  # kopf begins again for each request
        tries = list(islice(pauses, 1000))
        assert len(tries) == 1000
        assert max(tries) <= 60


async def test_watches_begin_again_where_an_answer_breaks_off_while_they_begin(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """kopf tries no such question a second time, and ends."""
    access = {"clusters": [{"name": "c", "cluster": {"server": api.access.url}}], "current-context": "c"}
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(access | {"contexts": contexts, "users": [{"name": "u", "user": {"token": "t"}}]}))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(watching, "_EndlessBackoff", lambda: iter([0.01] * 100))
    stop, tries = asyncio.Event(), 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        if request.path != "/apis":
            return web.json_response({"versions": []})
        tries += 1
        if tries > 1:
            stop.set()
            return web.json_response({"groups": []})
        torn = web.StreamResponse(headers={"Content-Length": "1000"})
        await torn.prepare(request)
        await torn.write(b"{")
        assert request.transport is not None
        request.transport.abort()
        return torn

    api.handler = answer
    async with asyncio.timeout(30):
        await watching.watch(Mock(), [], stop)
    assert tries == 2
