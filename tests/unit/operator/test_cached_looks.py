"""What is read from the cache, what is asked of the API server all the same, and how often trainers are asked."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gymtrain_api import labels
from gymtrain_api.times import to_text
from gymtrain_api.wiring import PREFLIGHT_MARK, TrainerProgress
from gymtrain_kube.errors import UnreachableError
from gymtrain_operator import kinds, reconciler
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.kinds import Kind
from gymtrain_operator.observe import Observer
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.trimming import trimmed
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.world import DEFAULTS, GYM_VERDICT, INFERENCE_VERDICT, OFFER, TRAINER_VERDICT, World, spec

KEY = ("ns", "run")


class _Followed(FakeKubeClient):
    """A cluster that a cache follows, at the pace of the test. `lists` counts the lists of what runs own."""

    def __init__(self, cache: ChildCache) -> None:
        super().__init__()
        self.cache = cache
        self.lists = 0
        for kind in kinds.CHILDREN:
            cache.begin(kind, None)

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        self.lists += kind in kinds.CHILDREN
        return await super().list(kind, namespace, selector)

    def put(self, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        stored = super().put(kind, manifest)
        if kind in kinds.CHILDREN:
            self.cache.put_own(kind, trimmed(kind, stored))
        return stored

    def edit(self, kind: Kind, name: str, *, seen: bool = True, **more: Any) -> None:
        """Somebody else writes to an object; the watch brings it where it is `seen`."""
        stored = FakeKubeClient.put(self, kind, self.objects[kind.name, "ns", name] | more)
        if seen:
            self.cache.put(kind, trimmed(kind, stored))


class _Bench:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.cache = ChildCache()
        self.cluster = _Followed(self.cache)
        self.now = 1_800_000_000.0
        observer = Observer(self.cluster, session, DEFAULTS, self.cache)
        self.reconciler = Reconciler(self.cluster, observer, DEFAULTS, lambda: self.now)
        meta = {"name": "run", "namespace": "ns", "uid": "run-uid", "generation": 1}
        self.cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": meta, "spec": spec()})

    async def look(self, seconds: float = 1.0) -> list[str]:
        """A full look; returns the writes."""
        self.now += seconds
        self.cluster.calls.clear()
        self.reconciler.event(KEY)
        await self.reconciler.reconcile(KEY)
        return self.cluster.calls

    async def to_training(self) -> None:
        await self.look()
        (pod,) = [name for kind, _, name in self.cluster.objects if kind == "Pod"]
        self.cluster.edit(kinds.POD, pod, status={"phase": "Succeeded"})
        verdicts = {"gym": GYM_VERDICT, "trainer": TRAINER_VERDICT, "inference": INFERENCE_VERDICT}
        for container, verdict in verdicts.items():
            self.cluster.logs_text[container] = PREFLIGHT_MARK + verdict.model_dump_json()
        for _ in range(3):
            await self.look()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Bench]:
    async def progress(*_: object) -> TrainerProgress:
        return TrainerProgress(phase="training", step=1, weight_version="run:1:1", updated_at=1.0)

    async def offers(*_: object) -> tuple[tuple[object, ...], str]:
        return (OFFER,), ""

    monkeypatch.setattr(Observer, "_progress", progress)
    monkeypatch.setattr(Observer, "_offers", offers)
    async with aiohttp.ClientSession() as session:
        yield _Bench(session)


async def test_a_run_is_brought_to_training_with_one_list(bench: _Bench) -> None:
    await bench.to_training()
    assert ("Job", "ns", "run-trainer-1") in bench.cluster.objects
    assert bench.cluster.lists == len(kinds.CHILDREN)


async def test_what_the_operator_wrote_is_seen_before_the_watch_brings_it(bench: _Bench) -> None:
    await bench.to_training()
    assert [call for call in await bench.look() if not call.startswith("PUT")] == [], "something is written again"


async def test_while_the_cache_isnt_current_each_look_asks_the_api_server(bench: _Bench) -> None:
    await bench.to_training()
    bench.cache.lose(kinds.JOB, None)
    bench.cluster.lists = 0
    await bench.look()
    await bench.look()
    assert bench.cluster.lists == 2 * len(kinds.CHILDREN)


async def test_after_a_gap_a_run_is_listed_once(bench: _Bench) -> None:
    await bench.to_training()
    bench.cluster.edit(kinds.JOB, "run-trainer-1", seen=False, status={"active": 1})
    bench.cache.begin(kinds.JOB, None)
    bench.cluster.lists = 0
    await bench.look()
    await bench.look()
    assert bench.cluster.lists == len(kinds.CHILDREN)
    by_kind = bench.cache.read(KEY)
    assert by_kind is not None
    assert by_kind["Job"][0]["status"] == {"active": 1}


async def test_a_look_of_which_no_changes_come_doesnt_hold_for_long(bench: _Bench) -> None:
    await bench.to_training()
    await bench.reconciler.reconcile(KEY)
    bench.cache.drop(KEY)  # as after a gap during its list
    bench.cluster.reads = 0
    bench.now += 31
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.reads > 0


async def test_nothing_is_kept_of_a_run_that_has_ended(bench: _Bench) -> None:
    await bench.look()
    (pod,) = [name for kind, _, name in bench.cluster.objects if kind == "Pod"]
    bench.cluster.edit(kinds.POD, pod, status={"phase": "Failed"})
    for _ in range(5):
        await bench.look()
    assert bench.reconciler.knows(KEY)
    assert not bench.reconciler._memories
    assert not any(shelf.by_run for shelf in bench.cache._shelves.values())


async def test_nothing_is_kept_of_a_run_that_is_gone(bench: _Bench) -> None:
    await bench.look()
    del bench.cluster.objects[labels.KIND, "ns", "run"]
    await bench.look()
    assert not any(shelf.by_run for shelf in bench.cache._shelves.values())


async def test_why_an_attempt_ended_is_read_from_the_api_server(bench: _Bench) -> None:
    """The event of the Job came, that of its pod hasn't yet."""
    await bench.to_training()
    owner = bench.cluster.objects["Job", "ns", "run-trainer-1"]["metadata"]
    meta = {
        "name": "run-trainer-1-0",
        "namespace": "ns",
        "labels": labels.run_labels("run", labels.Role.TRAINER) | {labels.ATTEMPT: "1"},
        "ownerReferences": [{"kind": "Job", "uid": owner["uid"], "controller": True}],
    }
    bench.cluster.put(kinds.POD, {"kind": "Pod", "metadata": meta, "status": {"phase": "Running"}})
    state = {"terminated": {"exitCode": 3, "message": "the loss is not a number"}}
    ended = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]}
    bench.cluster.edit(kinds.POD, "run-trainer-1-0", seen=False, status=ended)
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": to_text(bench.now)}
    bench.cluster.edit(kinds.JOB, "run-trainer-1", status={"conditions": [failed]})
    await bench.look()
    conditions = bench.cluster.objects[labels.KIND, "ns", "run"]["status"]["conditions"]
    (progressing,) = [one for one in conditions if one["type"] == "Progressing"]
    assert progressing["reason"] == "Retrying"
    assert "exit code 3" in progressing["message"] or "the loss is not a number" in progressing["message"]


async def test_an_event_is_not_forgotten_where_the_look_that_it_leads_to_fails(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server doesn't answer when the run itself is read. Nothing else tells of the trainer's end."""
    await bench.to_training()
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": to_text(bench.now)}
    bench.cluster.edit(kinds.JOB, "run-trainer-1", status={"conditions": [complete]})

    async def unanswered(*_: object) -> dict[str, Any]:
        raise UnreachableError("HTTP 503")

    with monkeypatch.context() as patch:
        patch.setattr(bench.cluster, "get", unanswered)
        with pytest.raises(UnreachableError):
            await bench.look()
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.objects[labels.KIND, "ns", "run"]["status"]["state"] == "Complete"


async def test_a_resync_writes_what_somebody_touched_and_nothing_else(bench: _Bench) -> None:
    await bench.to_training()
    bench.cluster.edit(kinds.SERVICE, "run-inference", spec={"ports": []})
    writes = [call for call in await bench.look(700) if call.startswith("APPLY")]
    assert writes == ["APPLY Service/run-inference"]


async def test_trainers_are_asked_less_often_the_more_runs_there_are(bench: _Bench) -> None:
    await bench.to_training()
    few = await bench.reconciler.reconcile(KEY)
    one = bench.reconciler._memories[KEY]
    bench.reconciler._memories |= {("ns", f"other-{number}"): one for number in range(500)}
    many = await bench.reconciler.reconcile(KEY)
    bench.reconciler._memories |= {("ns", f"other-{number}"): one for number in range(5000)}
    most = await bench.reconciler.reconcile(KEY)
    assert few == 2
    assert many == pytest.approx(501 / 25)
    assert most == reconciler._MAX_POLL_SECONDS <= 60, "a step in a status is older than a minute"


def test_a_trainer_that_starts_is_asked_soon_however_many_runs_there_are() -> None:
    world = World().to_servers()
    done = world.reconcile(poll_seconds=40.0)
    assert done.requeue_after is not None
    assert done.requeue_after <= 10


async def test_a_trainer_that_doesnt_answer_holds_up_no_full_look(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.to_training()
    bench.reconciler._full_looks = asyncio.Semaphore(1)
    bench.now += 1
    await bench.reconciler.reconcile(KEY)
    answered = asyncio.Event()

    async def silent(*_: object) -> None:
        await answered.wait()

    monkeypatch.setattr(Observer, "_progress", silent)
    poll = asyncio.create_task(bench.reconciler.reconcile(KEY))
    await asyncio.sleep(0)
    assert not bench.reconciler._full_looks.locked()
    answered.set()
    await poll


async def test_no_more_full_looks_are_made_at_once_than_allowed(bench: _Bench) -> None:
    bench.reconciler._full_looks = asyncio.Semaphore(1)
    async with bench.reconciler._full_looks:
        look = asyncio.create_task(bench.reconciler.reconcile(KEY))
        await asyncio.sleep(0.01)
        assert not look.done()
    await look


async def test_what_is_kept_of_a_run_is_not_unpacked_before_its_poll_has_a_turn(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.to_training()
    unpacked: list[object] = []
    monkeypatch.setattr(Reconciler, "_last", lambda *some: unpacked.append(some))
    bench.reconciler._polls = asyncio.Semaphore(1)
    async with bench.reconciler._polls:
        poll = asyncio.create_task(bench.reconciler.reconcile(KEY))
        await asyncio.sleep(0.01)
        assert unpacked == []
    await poll
    assert unpacked


async def test_waiting_for_its_turn_is_no_failure_of_a_look(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "LOOK_SECONDS", 0.05)
    bench.reconciler._full_looks = asyncio.Semaphore(1)
    async with bench.reconciler._full_looks:
        look = asyncio.create_task(bench.reconciler.reconcile(KEY))
        await asyncio.sleep(0.1)
        monkeypatch.setattr(reconciler, "LOOK_SECONDS", 60.0)
    await look


async def test_a_look_that_takes_too_long_is_given_up(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "LOOK_SECONDS", 0.01)

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Observer, "observe", stuck)
    with pytest.raises(TimeoutError):
        await bench.reconciler.reconcile(KEY)
