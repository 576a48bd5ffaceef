"""The requests that reach the API server, by the operator's verbs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_operator import kinds
from gymtrain_operator.kube_client import KubeClient
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


async def test_applying_a_new_object_does_not_insist(api: ScriptedApi, kube: KubeClient) -> None:
    await kube.apply(kinds.SERVICE, MANIFEST)
    assert api.request.query["force"] == "false"
    assert "uid" not in api.request.json["metadata"]


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
