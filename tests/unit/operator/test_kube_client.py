"""The requests that reach the API server, and what its answers become."""

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from gymtrain_operator import kinds
from gymtrain_operator.errors import ClusterError, ConflictError, NotFoundError, RejectedError, UnreachableError
from gymtrain_operator.kube_client import KubeClient

type Handler = Callable[[httpx.Request], httpx.Response]

MANIFEST: dict[str, Any] = {"kind": "Service", "metadata": {"name": "s", "namespace": "ns"}, "spec": {}}


def _cluster(handler: Handler) -> KubeClient:
    client = httpx.AsyncClient(base_url="https://api", transport=httpx.MockTransport(handler))
    return KubeClient(client, "ns")


def _recorded(*answers: dict[str, Any]) -> tuple[KubeClient, list[httpx.Request]]:
    requests: list[httpx.Request] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=left.pop(0) if left else {})

    return _cluster(handle), requests


async def test_applying_onto_a_known_object_names_its_uid_and_insists() -> None:
    cluster, requests = _recorded()
    await cluster.apply(kinds.SERVICE, MANIFEST, uid="u1")
    (request,) = requests
    assert (request.method, request.url.path) == ("PATCH", "/api/v1/namespaces/ns/services/s")
    assert request.url.params["force"] == "true"
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(request.content)["metadata"]["uid"] == "u1"


async def test_applying_a_new_object_does_not_insist() -> None:
    cluster, requests = _recorded()
    await cluster.apply(kinds.SERVICE, MANIFEST)
    assert requests[0].url.params["force"] == "false"
    assert "uid" not in json.loads(requests[0].content)["metadata"]


async def test_a_creation_asks_to_be_refused_where_a_field_is_unknown() -> None:
    cluster, requests = _recorded()
    await cluster.create(kinds.JOB, MANIFEST)
    assert (requests[0].method, requests[0].url.params["fieldValidation"]) == ("POST", "Strict")


async def test_metadata_is_changed_of_that_very_object_as_it_was_seen() -> None:
    cluster, requests = _recorded()
    live = {"metadata": {"name": "c", "namespace": "ns", "uid": "u1", "resourceVersion": "7", "labels": {"a": "b"}}}
    await cluster.change_metadata(kinds.CLAIM, live, {"ownerReferences": None})
    (request,) = requests
    assert (request.method, request.url.path) == ("PATCH", "/api/v1/namespaces/ns/persistentvolumeclaims/c")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    sent = {"metadata": {"ownerReferences": None, "uid": "u1", "resourceVersion": "7"}}
    assert json.loads(request.content) == sent


async def test_deletion_is_of_that_very_object() -> None:
    cluster, requests = _recorded()
    await cluster.delete(kinds.JOB, "ns", "j", "u1", foreground=True)
    assert json.loads(requests[0].content) == {"preconditions": {"uid": "u1"}, "propagationPolicy": "Foreground"}


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_what_is_gone_or_another_by_now_is_no_error(status: int) -> None:
    cluster = _cluster(lambda _: httpx.Response(status, json={"message": "no"}))
    await cluster.delete(kinds.JOB, "ns", "j", "u1")


async def test_lists_are_read_to_their_end() -> None:
    first = {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]}
    cluster, requests = _recorded(first, {"items": [{"metadata": {"name": "b"}}]})
    found = await cluster.list(kinds.POD, "ns", "x=y")
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [("Pod", "a"), ("Pod", "b")]
    assert requests[1].url.params["continue"] == "more"
    assert requests[1].url.params["labelSelector"] == "x=y"


async def test_all_namespaces_are_one_request() -> None:
    cluster, requests = _recorded({"items": []})
    await cluster.list(kinds.RUN, None)
    assert requests[0].url.path == "/apis/gymtrain.dev/v1alpha1/gymtrainingruns"


@pytest.mark.parametrize(
    ("status", "error", "final"),
    [
        (400, RejectedError, True),
        (401, UnreachableError, None),
        (403, RejectedError, False),
        (404, NotFoundError, None),
        (409, ConflictError, None),
        (422, RejectedError, True),
        (429, UnreachableError, None),
        (500, UnreachableError, None),
    ],
)
async def test_answers_become_errors_of_our_own(status: int, error: type[ClusterError], final: bool | None) -> None:
    cluster = _cluster(lambda _: httpx.Response(status, json={"message": "because"}))
    with pytest.raises(error, match="because") as raised:
        await cluster.get(kinds.POD, "ns", "p")
    assert getattr(raised.value, "final", None) is final


@pytest.mark.parametrize(
    "words",
    [
        "failed to create typed patch object (ns/s; apps/v1, Kind=Deployment): .spec.x: field not declared in schema",
        "failed to convert new object (ns/s; apps/v1, Kind=Deployment) to proper version: quantities must match",
    ],
)
async def test_an_object_that_does_not_fit_its_schema_is_refused_for_good(words: str) -> None:
    cluster = _cluster(lambda _: httpx.Response(500, json={"message": words}))
    with pytest.raises(RejectedError) as raised:
        await cluster.apply(kinds.SERVICE, MANIFEST)
    assert (str(raised.value), raised.value.final) == (words, True)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (422, "jobs.batch \"j\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no GPUs"),
        (401, "jobs.batch \"j\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: who?"),
        (400, 'admission webhook "policy.example.com" denied the request: no owner label'),
        (404, 'admission webhook "policy.example.com" denied the request: no such team'),
        (500, 'admission webhook "policy.example.com" denied the request without explanation'),
        (403, 'pods "p" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=4, limited: pods=4'),
        (403, 'pods "p" is forbidden: minimum cpu usage per Container is 100m, but request is 20m'),
        (403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest": seccompProfile'),
    ],
)
async def test_what_admission_denies_may_be_taken_later(status: int, words: str) -> None:
    cluster = _cluster(lambda _: httpx.Response(status, json={"message": words}))
    with pytest.raises(RejectedError) as raised:
        await cluster.create(kinds.JOB, MANIFEST)
    assert (str(raised.value), raised.value.final) == (words, False)


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("86400", 300.0)]
)
async def test_an_api_server_that_is_busy_says_when_to_come_again(header: str | None, seconds: float | None) -> None:
    headers = {} if header is None else {"Retry-After": header}
    cluster = _cluster(lambda _: httpx.Response(429, json={"message": "too many requests"}, headers=headers))
    with pytest.raises(UnreachableError) as raised:
        await cluster.get(kinds.POD, "ns", "p")
    assert raised.value.retry_after == seconds


async def test_an_answer_that_is_no_json_is_no_crash() -> None:
    cluster = _cluster(lambda _: httpx.Response(502, text="<html>bad gateway</html>"))
    with pytest.raises(UnreachableError, match="bad gateway"):
        await cluster.get(kinds.POD, "ns", "p")


async def test_a_lost_connection_is_an_error_of_our_own() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(UnreachableError, match="refused"):
        await _cluster(refuse).get(kinds.POD, "ns", "p")


async def test_the_status_is_put_with_the_version_it_was_computed_from() -> None:
    cluster, requests = _recorded()
    run = {"metadata": {"name": "r", "namespace": "ns", "resourceVersion": "7"}, "status": {"state": "x"}}
    await cluster.replace(kinds.RUN, run, "status")
    assert (requests[0].method, requests[0].url.path.rsplit("/", 1)[1]) == ("PUT", "status")
    assert json.loads(requests[0].content)["metadata"]["resourceVersion"] == "7"
