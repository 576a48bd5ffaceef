"""What somebody else sends the operator has a bound, and what it keeps of it is little."""

import asyncio
import json
import pickle
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.wiring import PREFLIGHT_MARK, TrainerProgress
from gymtrain_operator import kinds, probes
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.errors import OversizedAnswerError, ProbeError
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.observe import Observer
from gymtrain_operator.probes import probing_session
from gymtrain_operator.trimming import trimmed, trimmed_run
from tests.support.apiserver import free_port
from tests.support.world import DEFAULTS, TRAINER_VERDICT, World

PROGRESS = TrainerProgress(phase="training", step=3).model_dump_json().encode()
MIB = 1 << 20

type Routes = dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]
type Serve = Callable[[Routes], Awaitable[None]]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with probing_session() as opened:
        yield opened


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """Plays a pod at 127.0.0.1, on the port that both probes ask."""
    async with AsyncExitStack() as stack:

        async def start(routes: Routes) -> None:
            app, port = web.Application(), free_port()
            for path, handler in routes.items():
                app.router.add_get(path, handler)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            monkeypatch.setattr(probes, "INFERENCE_PORT", port)
            monkeypatch.setattr(probes, "TRAINER_PORT", port)

        yield start


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)
    while True:
        await answer.write(b'"' + b"x" * 65536 + b'",')


async def test_a_vllm_whose_openapi_has_no_end_is_refused_by_its_size(
    serve: Serve, session: aiohttp.ClientSession
) -> None:
    await serve({"/openapi.json": _endless})
    with pytest.raises(OversizedAnswerError, match=r"openapi\.json: the answer is longer than 2048 KiB"):
        await probes.server_offer(session, "127.0.0.1")


async def test_a_trainer_whose_progress_has_no_end_is_refused_by_its_size(
    serve: Serve, session: aiohttp.ClientSession
) -> None:
    await serve({"/progress": _endless})
    with pytest.raises(OversizedAnswerError, match="longer than 64 KiB"):
        await probes.trainer_progress(session, "127.0.0.1")


async def test_an_answer_that_unpacks_to_more_is_not_unpacked(serve: Serve, session: aiohttp.ClientSession) -> None:
    packed = zlib.compress(b" " * (8 * MIB))

    async def bomb(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "deflate"})

    await serve({"/progress": bomb})
    with pytest.raises(ProbeError, match="not a progress document"):
        await probes.trainer_progress(session, "127.0.0.1")


async def test_progress_that_comes_in_parts_is_read_to_its_end(serve: Serve, session: aiohttp.ClientSession) -> None:
    async def slowly(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for start in range(0, len(PROGRESS), 16):
            await answer.write(PROGRESS[start : start + 16])
            await asyncio.sleep(0.001)
        return answer

    await serve({"/progress": slowly})
    assert (await probes.trainer_progress(session, "127.0.0.1")).step == 3


async def test_a_pod_sends_the_operator_nowhere_else(serve: Serve, session: aiohttp.ClientSession) -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("/secret")

    async def secret(_: web.Request) -> web.Response:
        return web.Response(body=PROGRESS)

    await serve({"/progress": elsewhere, "/openapi.json": elsewhere, "/secret": secret})
    with pytest.raises(ProbeError, match="HTTP 302"):
        await probes.trainer_progress(session, "127.0.0.1")
    with pytest.raises(ProbeError, match="HTTP 302"):
        await probes.server_offer(session, "127.0.0.1")


def test_the_condition_names_the_vllm_that_answers_without_end() -> None:
    world = World().to_servers()
    world.reconcile(5, oversized="http://10.0.0.7:8000/openapi.json: the answer is longer than 2048 KiB")
    claim = world.condition(ConditionType.WEIGHT_SYNC_READY)
    assert claim.reason == Reason.WAITING_FOR_INFERENCE
    assert "http://10.0.0.7:8000/openapi.json: the answer is longer than 2048 KiB" in claim.message


# ── the API server ────────────────────────────────────────────────────────────────────────────────


async def test_few_logs_are_read_at_the_same_time() -> None:
    """A hundred runs whose preflight ended at once are a hundred times two logs."""
    reading = most = 0

    class Logs(KubeClient):
        def __init__(self) -> None:
            return

        async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await tick()
            reading -= 1
            return PREFLIGHT_MARK + TRAINER_VERDICT.model_dump_json()

        async def get(self, kind: kinds.Kind, namespace: str | None, name: str) -> dict[str, Any]:
            return world.preflight_pod

    async def tick() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    world = World()
    world.reconcile()
    world.preflight_pod["status"] = {"phase": "Succeeded"}
    observer, seen = Observer(Logs(), aiohttp.ClientSession(), DEFAULTS), world.observe()
    read = [observer._preflight_output(seen) for _ in range(20)]
    outputs = await asyncio.gather(*read)
    await observer._session.close()
    assert all(output is not None and output.trainer == TRAINER_VERDICT for output in outputs)
    assert most == 2


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────


def _as_served(kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """The object with what the API server adds: who wrote which field."""
    fields: dict[str, Any] = {}

    def name(value: Any, into: dict[str, Any]) -> None:
        for key, item in value.items() if isinstance(value, dict) else []:
            name(item, into.setdefault(f"f:{key}", {}))
        for item in value if isinstance(value, list) else []:
            name(item, into.setdefault(f"k:{json.dumps(item)[:60]}", {}))

    name(manifest, fields)
    writer = {"manager": "gymtrain-operator", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}
    return {"kind": kind, **manifest, "metadata": manifest["metadata"] | {"managedFields": [writer]}}


def test_what_a_run_owns_is_kept_in_little_memory() -> None:
    """By the interpreter's own count: 27 KB now; as objects it would be three times that, with all that the API server
    says thirty times."""
    world = World().to_training()
    served = json.dumps({k: {n: _as_served(k, o) for n, o in objects.items()} for k, objects in world.objects.items()})
    cache = ChildCache()
    for kind in kinds.CHILDREN:
        cache.begin(kind, None)
    runs = [(f"ns-{number}", "run") for number in range(20)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for namespace, run in runs:
            read = json.loads(served.replace('"namespace": "ns"', f'"namespace": "{namespace}"'))
            since = cache.want((namespace, run))
            listed = {
                kind.name: [trimmed(kind, o) for o in read.get(kind.name, {}).values()] for kind in kinds.CHILDREN
            }
            cache.fill((namespace, run), listed, since)
            del read, listed
        size = (tracemalloc.get_traced_memory()[0] - before) / len(runs)
    finally:
        tracemalloc.stop()
    last = cache.read(runs[-1])
    assert last is not None
    assert {name for name, items in last.items() if items} >= {"Pod", "Deployment", "Job", "Service"}
    assert size < 35_000, f"{size / 1000:.0f} KB a run"


def test_a_look_at_a_run_that_trains_is_remembered_in_little_memory() -> None:
    """21 KB now. As objects, of which there are a thousand, it is five times that."""
    seen = World().to_training().observe()
    assert len(pickle.dumps(seen, pickle.HIGHEST_PROTOCOL)) < 30_000


def test_of_a_pod_template_its_images_and_its_group_are_kept_and_who_else_wrote_it() -> None:
    entry = {
        "manager": "kubectl-set",
        "time": "t",
        "fieldsV1": {"f:spec": {"f:template": {"f:spec": {}}, "f:replicas": {}}},
    }
    container = {"name": "c", "image": "i:1"}
    group = {"scheduling.x-k8s.io/pod-group": "run-gang"}
    template = {
        "metadata": {"labels": group | {"app": "x"}, "annotations": {"a": "b"}},
        "spec": {"volumes": [{}], "containers": [container | {"args": ["x"]}]},
    }
    live = {"metadata": {"name": "d", "managedFields": [entry]}, "spec": {"replicas": 2, "template": template}}
    assert trimmed(kinds.DEPLOYMENT, live) == {
        "kind": "Deployment",
        "metadata": {
            "name": "d",
            "managedFields": [{"manager": "kubectl-set", "fieldsV1": {"f:spec": {"f:template": {}}}}],
        },
        "spec": {"replicas": 2, "template": {"metadata": {"labels": group}, "spec": {"containers": [container]}}},
    }


def test_a_run_is_kept_without_the_copies_that_others_put_into_it() -> None:
    notes = {"kubectl.kubernetes.io/last-applied-configuration": "{...}", "mine": "1"}
    run = {"metadata": {"name": "r", "managedFields": [{}], "annotations": notes}, "spec": {"a": 1}}
    assert trimmed_run(run) == {"metadata": {"name": "r", "annotations": {"mine": "1"}}, "spec": {"a": 1}}
