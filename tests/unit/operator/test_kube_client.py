"""The requests that reach the API server, by the operator's verbs."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gymtrain_kube.errors import UnreachableError
from gymtrain_operator import kinds
from gymtrain_operator.errors import LostLeaseError
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.lease import Fence
from gymtrain_operator.rate_limit import RateLimit
from tests.support.scripted_api import ScriptedApi

MANIFEST: dict[str, Any] = {"kind": "Service", "metadata": {"name": "s", "namespace": "ns"}, "spec": {}}


@pytest.fixture
async def kube(api: ScriptedApi) -> AsyncIterator[KubeClient]:
    """The operator's client."""
    client = KubeClient(api.access)
    yield client
    await client.close()


async def test_applying_onto_a_known_object_names_its_uid_and_insists(api: ScriptedApi, kube: KubeClient) -> None:
    await kube.apply(kinds.SERVICE, MANIFEST, uid="u1")
    request = api.request
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/ns/services/s")
    assert request.query["force"] == "true"
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.json["metadata"]["uid"] == "u1"


async def test_applying_a_new_object_does_not_insist_and_asks_for_a_version_that_no_object_has(
    api: ScriptedApi, kube: KubeClient
) -> None:
    await kube.apply(kinds.SERVICE, MANIFEST)
    assert api.request.query["force"] == "false"
    assert api.request.json["metadata"] == MANIFEST["metadata"] | {"resourceVersion": "1"}


async def test_all_writes_have_the_operators_name(api: ScriptedApi, kube: KubeClient) -> None:
    await kube.create(kinds.JOB, MANIFEST)
    await kube.apply(kinds.SERVICE, MANIFEST)
    await kube.scale(kinds.DEPLOYMENT, "ns", "d", "u1", 0)
    await kube.replace(kinds.SERVICE, MANIFEST)
    assert {request.query["fieldManager"] for request in api.requests} == {"gymtrain-operator"}


async def test_a_creation_asks_to_be_refused_where_a_field_is_unknown(api: ScriptedApi, kube: KubeClient) -> None:
    await kube.create(kinds.JOB, MANIFEST)
    assert (api.request.method, api.request.query["fieldValidation"]) == ("POST", "Strict")


async def test_metadata_is_changed_of_that_very_object_as_it_was_seen(api: ScriptedApi, kube: KubeClient) -> None:
    live = {"metadata": {"name": "c", "namespace": "ns", "uid": "u1", "resourceVersion": "7", "labels": {"a": "b"}}}
    await kube.change_metadata(kinds.VOLUME_CLAIM, live, {"ownerReferences": None})
    request = api.request
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/ns/persistentvolumeclaims/c")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.json == {"metadata": {"ownerReferences": None, "uid": "u1", "resourceVersion": "7"}}


async def test_deletion_is_of_that_very_object(api: ScriptedApi, kube: KubeClient) -> None:
    await kube.delete(kinds.JOB, "ns", "j", "u1", foreground=True)
    assert api.request.json == {"preconditions": {"uid": "u1"}, "propagationPolicy": "Foreground"}


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_what_is_gone_or_another_by_now_is_no_error(
    api: ScriptedApi, kube: KubeClient, status: int
) -> None:
    api.answer({"message": "no"}, status=status)
    await kube.delete(kinds.JOB, "ns", "j", "u1")


async def test_lists_are_read_to_their_end(api: ScriptedApi, kube: KubeClient) -> None:
    first = {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]}
    api.answer(first, {"items": [{"metadata": {"name": "b"}}]})
    found = await kube.list(kinds.POD, "ns", "x=y")
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [("Pod", "a"), ("Pod", "b")]
    assert api.requests[1].query["continue"] == "more"
    assert api.requests[1].query["labelSelector"] == "x=y"


async def test_all_namespaces_are_one_request(api: ScriptedApi, kube: KubeClient) -> None:
    api.answer({"items": []})
    await kube.list(kinds.RUN, None)
    assert api.request.path == "/apis/gymtrain.dev/v1alpha1/gymtrainingruns"


async def test_runs_are_listed_by_their_metadata_alone_and_in_pages(api: ScriptedApi, kube: KubeClient) -> None:
    first, last = ({"namespace": "ns", "name": name, "resourceVersion": "7"} for name in ("a", "b"))
    api.answer({"metadata": {"continue": "more"}, "items": [{"metadata": first}]}, {"items": [{"metadata": last}]})
    found = await kube.versions(kinds.RUN, None)
    assert found == {("ns", "a"): "7", ("ns", "b"): "7"}
    assert all("as=PartialObjectMetadataList" in request.headers["Accept"] for request in api.requests)
    assert [request.query["limit"] for request in api.requests] == ["100", "100"]


async def test_the_status_is_put_with_the_version_it_was_computed_from(api: ScriptedApi, kube: KubeClient) -> None:
    run = {"metadata": {"name": "r", "namespace": "ns", "resourceVersion": "7"}, "status": {"state": "x"}}
    await kube.replace(kinds.RUN, run, "status")
    assert (api.request.method, api.request.path.rsplit("/", 1)[1]) == ("PUT", "status")
    assert api.request.json["metadata"]["resourceVersion"] == "7"


async def test_outside_a_pod_the_kubeconfig_leads_to_the_api_server(
    api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "sys"}
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": api.access.url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (tmp_path / "config").write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    kube = KubeClient.connect(lambda: None)
    assert await kube.knows_runs()
    await kube.close()
    assert kube.namespace == "sys"
    assert api.request.headers["Authorization"] == "Bearer secret"
    assert api.request.path == "/apis/gymtrain.dev/v1alpha1"


class _Limit(RateLimit):
    """Notes turns and rests."""

    def __init__(self) -> None:
        super().__init__(1000, 1000)
        self.turns = 0
        self.rests: list[float] = []

    async def turn(self) -> float:
        self.turns += 1
        return 0.0

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)


@pytest.fixture
async def limited(api: ScriptedApi) -> AsyncIterator[tuple[KubeClient, _Limit]]:
    limit = _Limit()
    client = KubeClient(api.access, limit=limit)
    yield client, limit
    await client.close()


async def test_each_request_waits_for_its_turn(api: ScriptedApi, limited: tuple[KubeClient, _Limit]) -> None:
    kube, limit = limited
    api.answer({"metadata": {"name": "s"}})
    await kube.get(kinds.SERVICE, "ns", "s")
    await kube.list(kinds.SERVICE, "ns")
    await kube.versions(kinds.RUN, None)
    await kube.knows_runs()
    await kube.serves(kinds.AGENT_SANDBOX)
    await kube.apply(kinds.SERVICE, MANIFEST)
    await kube.create(kinds.JOB, MANIFEST)
    await kube.replace(kinds.RUN, MANIFEST, "status")
    await kube.change_metadata(
        kinds.RUN, {"metadata": {**MANIFEST["metadata"], "uid": "u", "resourceVersion": "1"}}, {}
    )
    await kube.scale(kinds.DEPLOYMENT, "ns", "d", "u1", 0)
    await kube.delete(kinds.SERVICE, "ns", "s", "u1")
    await kube.logs("ns", "p", "c", lines=1)
    assert limit.turns == len(api.requests) == 12


async def test_the_lease_waits_for_nobody(api: ScriptedApi, limited: tuple[KubeClient, _Limit]) -> None:
    kube, limit = limited
    await kube.get(kinds.LEASE, "sys", "gymtrain-operator")
    await kube.replace(kinds.LEASE, MANIFEST)
    assert (limit.turns, len(api.requests)) == (0, 2)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "ask", [lambda kube: kube.get(kinds.SERVICE, "ns", "s"), lambda kube: kube.versions(kinds.RUN, None)]
)
async def test_an_api_server_that_wants_to_rest_is_left_alone_by_all(
    api: ScriptedApi,
    limited: tuple[KubeClient, _Limit],
    status: int,
    ask: Callable[[KubeClient], Awaitable[Any]],
) -> None:
    kube, limit = limited
    api.answer({"message": "too many requests"}, status=status, headers={"Retry-After": "4"})
    with pytest.raises(UnreachableError):
        await ask(kube)
    assert limit.rests == [4]


async def test_what_a_write_is_answered_with_is_passed_on_and_cut(api: ScriptedApi) -> None:
    seen: list[Any] = []
    kube = KubeClient(api.access, on_write=lambda kind, item: seen.append((kind, item)))
    meta = {"name": "s", "namespace": "ns", "resourceVersion": "9"}
    api.answer({"metadata": meta | {"managedFields": [{}]}, "spec": {"clusterIP": "10.0.0.1"}})
    await kube.apply(kinds.SERVICE, MANIFEST)
    await kube.create(kinds.EVENT, MANIFEST)
    await kube.get(kinds.SERVICE, "ns", "s")
    await kube.close()
    assert seen == [(kinds.SERVICE, {"kind": "Service", "metadata": meta})]


async def test_the_version_to_watch_from_is_asked_without_the_objects(api: ScriptedApi, kube: KubeClient) -> None:
    api.answer({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]})
    assert await kube.version(kinds.POD, None, "a=b") == "7"
    assert api.request.path == "/api/v1/pods"
    assert (api.request.query["limit"], api.request.query["labelSelector"]) == ("1", "a=b")
    assert "PartialObjectMetadataList" in api.request.headers["Accept"]


async def test_a_watch_brings_objects_cut_like_those_of_a_list(api: ScriptedApi, kube: KubeClient) -> None:
    item = {"metadata": {"name": "a", "managedFields": [{}]}, "spec": {"nodeName": "n", "volumes": []}}
    api.answer(json.dumps({"type": "ADDED", "object": item}) + "\n")
    events = [event async for event in kube.watch(kinds.POD, "ns", "a=b", "7")]
    assert events == [("ADDED", {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": "n"}})]
    assert (api.request.query["resourceVersion"], api.request.query["labelSelector"]) == ("7", "a=b")


async def test_who_may_not_act_reads_and_renews_and_writes_nothing(api: ScriptedApi) -> None:
    fence = Fence()
    fence.close()
    kube = KubeClient(api.access, before_write=fence.check)
    api.answer({"metadata": {"name": "s"}})
    live = {"metadata": {**MANIFEST["metadata"], "uid": "u", "resourceVersion": "1"}}
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: kube.apply(kinds.SERVICE, MANIFEST),
        lambda: kube.create(kinds.JOB, MANIFEST),
        lambda: kube.replace(kinds.RUN, MANIFEST, "status"),
        lambda: kube.change_metadata(kinds.RUN, live, {}),
        lambda: kube.change(kinds.EVENT, "ns", "e", {}),
        lambda: kube.scale(kinds.DEPLOYMENT, "ns", "d", "u1", 0),
        lambda: kube.delete(kinds.SERVICE, "ns", "s", "u1"),
    ]
    for write in writes:
        with pytest.raises(LostLeaseError):
            await write()
    assert api.requests == []
    await kube.get(kinds.SERVICE, "ns", "s")
    await kube.create(kinds.LEASE, MANIFEST)
    await kube.replace(kinds.LEASE, MANIFEST)
    fence.open_until(math.inf)
    for write in writes:
        await write()
    assert len(api.requests) == 3 + len(writes)
    await kube.close()


async def test_the_lease_waits_for_no_connection(api: ScriptedApi) -> None:
    """A busy API server holds all of them."""
    release = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        if "/leases/" not in request.path:
            await release.wait()
        return web.json_response({})

    api.handler = hang
    kube = KubeClient(api.access)
    waiting = [asyncio.create_task(kube.get(kinds.SERVICE, "ns", "s")) for _ in range(40)]
    async with asyncio.timeout(10):
        await kube.replace(kinds.LEASE, MANIFEST)
    release.set()
    await asyncio.gather(*waiting)
    await kube.close()
