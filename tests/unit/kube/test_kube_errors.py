"""What the API server's refusals become."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import (
    ConflictError,
    ExpiredError,
    KubeError,
    NotFoundError,
    RejectedError,
    UnreachableError,
)
from tests.support.scripted_api import ScriptedApi

CALLS: dict[str, Callable[[RestClient], Awaitable[Any]]] = {
    "GET": lambda client: client.get("/p"),
    "POST": lambda client: client.create("/p", {}),
    "APPLY": lambda client: client.apply("/p", {}, force=True),
    "JSON PATCH": lambda client: client.json_patch("/p", []),
    "MERGE PATCH": lambda client: client.merge_patch("/p", {}),
}


@pytest.mark.parametrize(
    ("method", "status", "error", "final"),
    [
        ("GET", 400, RejectedError, True),
        ("GET", 401, UnreachableError, None),
        ("GET", 403, RejectedError, False),
        ("GET", 404, NotFoundError, None),
        ("GET", 409, ConflictError, None),
        ("GET", 410, ExpiredError, None),
        ("GET", 422, RejectedError, True),
        ("GET", 429, UnreachableError, None),
        ("GET", 500, UnreachableError, None),
        ("POST", 401, UnreachableError, None),
        ("POST", 409, ConflictError, None),
        ("POST", 410, ExpiredError, None),
        ("POST", 422, RejectedError, True),
        ("POST", 429, UnreachableError, None),
        ("JSON PATCH", 404, NotFoundError, None),
        ("JSON PATCH", 422, ConflictError, None),
        ("JSON PATCH", 500, UnreachableError, None),
        ("MERGE PATCH", 422, RejectedError, True),
    ],
)
async def test_answers_become_errors_of_our_own(
    api: ScriptedApi, client: RestClient, method: str, status: int, error: type[KubeError], final: bool | None
) -> None:
    api.answer({"message": "because"}, status=status)
    with pytest.raises(error, match="because") as raised:
        await CALLS[method](client)
    assert type(raised.value) is error
    assert getattr(raised.value, "final", None) is final


@pytest.mark.parametrize(
    ("reason", "error"), [("AlreadyExists", ConflictError), ("", ConflictError), ("Conflict", UnreachableError)]
)
async def test_a_creation_that_conflicts_with_another_object_may_be_tried_again(
    api: ScriptedApi, client: RestClient, reason: str, error: type[KubeError]
) -> None:
    """Quotas are counted in an object that others write, too."""
    api.answer({"message": "because", "reason": reason}, status=409)
    with pytest.raises(error):
        await client.create("/p", {})


@pytest.mark.parametrize(
    "words",
    [
        "failed to create typed patch object (ns/s; apps/v1, Kind=Deployment): .spec.x: field not declared in schema",
        "failed to convert new object (ns/s; apps/v1, Kind=Deployment) to proper version: quantities must match",
    ],
)
async def test_an_object_that_does_not_fit_its_schema_is_refused_for_good(
    api: ScriptedApi, client: RestClient, words: str
) -> None:
    api.answer({"message": words}, status=500)
    with pytest.raises(RejectedError) as raised:
        await CALLS["APPLY"](client)
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
async def test_what_admission_denies_may_be_taken_later(
    api: ScriptedApi, client: RestClient, status: int, words: str
) -> None:
    api.answer({"message": words}, status=status)
    with pytest.raises(RejectedError) as raised:
        await CALLS["POST"](client)
    assert (str(raised.value), raised.value.final) == (words, False)


@pytest.mark.parametrize(
    ("status", "message", "over_quota"),
    [(403, "exceeded quota: q", True), (403, "violates PodSecurity", False), (422, "exceeded quota: q", False)],
)
async def test_a_quota_that_is_used_up_is_told_from_other_refusals(
    api: ScriptedApi, client: RestClient, status: int, message: str, over_quota: bool
) -> None:
    api.answer({"message": message}, status=status)
    with pytest.raises(RejectedError) as raised:
        await CALLS["POST"](client)
    assert raised.value.over_quota is over_quota


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("86400", 300.0)]
)
async def test_an_api_server_that_is_busy_says_when_to_come_again(
    api: ScriptedApi, client: RestClient, header: str | None, seconds: float | None
) -> None:
    api.answer({"message": "too many requests"}, status=429, headers={} if header is None else {"Retry-After": header})
    with pytest.raises(UnreachableError) as raised:
        await client.get("/p")
    assert raised.value.retry_after == seconds


async def test_an_answer_that_is_no_json_is_no_crash(api: ScriptedApi, client: RestClient) -> None:
    api.answer("<html>bad gateway</html>", status=502)
    with pytest.raises(UnreachableError, match="bad gateway"):
        await client.get("/p")


@pytest.mark.parametrize("text", ["<html>welcome</html>", "[]"])
async def test_a_good_answer_that_is_no_object_is_no_crash(api: ScriptedApi, client: RestClient, text: str) -> None:
    api.answer(text)
    with pytest.raises(UnreachableError, match="GET /p: the API server"):
        await client.get("/p")
