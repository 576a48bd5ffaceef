"""The requests that reach the API server, and the bounds of what it answers."""

import asyncio
import json
import socket
from contextlib import aclosing, suppress

import pytest
from aiohttp import web

from gymtrain_kube import client as client_module
from gymtrain_kube.access import Access
from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import ExpiredError, KubeError, UnreachableError, UnreadLogError
from gymtrain_kube.objects import Object
from tests.support.scripted_api import MIB, Endless, ScriptedApi


async def test_a_creation_asks_to_be_refused_where_a_field_is_unknown(api: ScriptedApi, client: RestClient) -> None:
    await client.create("/p", {"kind": "Job"})
    assert (api.request.method, api.request.query["fieldValidation"]) == ("POST", "Strict")
    assert (api.request.query["fieldManager"], api.request.json) == ("tests", {"kind": "Job"})


async def test_each_patch_says_which_kind_it_is(api: ScriptedApi, client: RestClient) -> None:
    await client.apply("/p", {"a": 1}, force=False)
    await client.merge_patch("/p", {"a": None})
    await client.json_patch("/p", [{"op": "test", "path": "/a", "value": 1}])
    assert {request.method for request in api.requests} == {"PATCH"}
    assert [request.headers["Content-Type"] for request in api.requests] == [
        "application/apply-patch+yaml",
        "application/merge-patch+json",
        "application/json-patch+json",
    ]
    assert [request.json for request in api.requests] == [
        {"a": 1},
        {"a": None},
        [{"op": "test", "path": "/a", "value": 1}],
    ]


async def test_a_deletion_names_the_very_object(api: ScriptedApi, client: RestClient) -> None:
    await client.delete("/p", uid="u1", resource_version="7", propagation="Foreground")
    await client.delete("/p")
    assert [request.json for request in api.requests] == [
        {"preconditions": {"uid": "u1", "resourceVersion": "7"}, "propagationPolicy": "Foreground"},
        {},
    ]


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_what_is_gone_or_another_by_now_is_no_error(
    api: ScriptedApi, client: RestClient, status: int
) -> None:
    api.answer({"message": "no"}, status=status)
    await client.delete("/p", uid="u1")


async def test_lists_are_read_to_their_end(api: ScriptedApi, client: RestClient) -> None:
    first = {"metadata": {"continue": "m+/="}, "items": [{"metadata": {"name": "a"}}]}
    api.answer(first, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]})
    found, version = await client.list_all("/p", "x=y", page=1)
    assert ([item["metadata"]["name"] for item in found], version) == (["a", "b"], "7")
    assert [dict(request.query) for request in api.requests] == [
        {"limit": "1", "labelSelector": "x=y"},
        {"limit": "1", "labelSelector": "x=y", "continue": "m+/="},
    ]


async def test_a_list_can_be_of_metadata_alone(api: ScriptedApi, client: RestClient) -> None:
    api.answer({"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]}, {"items": None})
    assert await client.list_all("/p", metadata_only=True) == ([{"metadata": {"name": "a"}}], "")
    assert all("as=PartialObjectMetadataList" in request.headers["Accept"] for request in api.requests)


async def test_an_answer_has_a_bound(api: ScriptedApi, client: RestClient) -> None:
    api.handler = endless = Endless()
    with pytest.raises(UnreachableError, match="longer than 16 MiB"):
        await client.get("/p")
    assert endless.sent < 20 * MIB


async def test_a_log_is_asked_for_by_lines_and_bytes_and_read_no_further(api: ScriptedApi, client: RestClient) -> None:
    api.handler = endless = Endless()
    with pytest.raises(UnreachableError, match="longer than"):
        await client.logs("/pods/pod", "gym", lines=10)
    assert api.request.path == "/pods/pod/log"
    assert dict(api.request.query) == {"container": "gym", "tailLines": "10", "limitBytes": str(10 * 16384)}
    assert endless.sent <= 2 * MIB


async def test_a_log_of_the_instance_before_the_restart(api: ScriptedApi, client: RestClient) -> None:
    api.answer("one\ntwo\n")
    assert await client.logs("/pods/pod", "gym", lines=2, previous=True) == "one\ntwo\n"
    assert api.request.query["previous"] == "true"


async def test_a_log_that_the_runtime_does_not_give_is_not_that_sentence(api: ScriptedApi, client: RestClient) -> None:
    """By then the kubelet has begun its answer, with status 200."""
    api.answer("unable to retrieve container logs for containerd://0f3c")
    with pytest.raises(UnreadLogError, match=r"/pods/pod, container gym: unable to retrieve .*containerd://0f3c"):
        await client.logs("/pods/pod", "gym", lines=2)
    api.answer("unable to retrieve container logs for fun\n")
    assert await client.logs("/pods/pod", "gym", lines=2), "what a container printed ends with its line"


async def test_a_redirect_is_an_error(api: ScriptedApi, client: RestClient) -> None:
    api.answer({}, status=307, headers={"Location": "/elsewhere"})
    with pytest.raises(UnreachableError, match="307"):
        await client.get("/p")
    assert api.request.path == "/p"


async def test_a_call_has_a_deadline_however_the_answer_comes(
    api: ScriptedApi, client: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_CALL_SECONDS", 0.2)

    async def bit_by_bit(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.02)

    api.handler = bit_by_bit
    with pytest.raises(UnreachableError, match="GET /p: TimeoutError"):
        await client.get("/p")


async def test_a_lost_connection_is_an_error_of_our_own(api: ScriptedApi, client: RestClient) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    api.handler = hang_up
    with pytest.raises(UnreachableError, match=r"GET /p: (ServerDisconnectedError|ClientOSError)"):
        await client.get("/p")


async def test_an_api_server_that_is_not_there_is_an_error_of_our_own() -> None:
    client = RestClient(Access("http://127.0.0.1:1"))
    with pytest.raises(UnreachableError, match="ClientConnectorError"):
        await client.get("/p")
    await client.close()


async def test_proxies_are_not_asked(api: ScriptedApi, client: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await client.get("/p")


async def test_each_call_is_told_with_its_status_or_that_no_answer_came(api: ScriptedApi) -> None:
    calls: list[tuple[str, int | None]] = []
    client = RestClient(
        api.access, answer_bytes=MIB, on_call=lambda method, status, seconds: calls.append((method, status))
    )
    await client.get("/p")
    api.answer({}, status=403)
    with suppress(KubeError):
        await client.create("/p", {})
    api.handler = Endless()
    with suppress(KubeError):
        await client.get("/p")
    await client.close()
    assert calls == [("GET", 200), ("POST", 403), ("GET", None)]


class _TooLateError(Exception):
    """Keeps a write back."""


async def test_a_write_that_waited_too_long_for_a_connection_is_kept_back(api: ScriptedApi) -> None:
    late, release = asyncio.Event(), asyncio.Event()

    def check() -> None:
        if late.is_set():
            raise _TooLateError

    async def hang(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    api.handler = hang
    client = RestClient(api.access, connections=1, before_write=check)
    first = asyncio.create_task(client.get("/first"))
    second = asyncio.create_task(client.create("/second", {}))
    async with asyncio.timeout(10):
        while not api.requests:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
    late.set()
    release.set()
    await first
    with pytest.raises(_TooLateError):
        await second
    assert [request.path for request in api.requests] == ["/first"]
    late.clear()
    await client.create("/third", {})
    await client.close()


async def test_what_is_left_of_a_call_that_timed_out_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reset. After a common end the kernel would go on to deliver what it has."""
    monkeypatch.setattr(client_module, "_CALL_SECONDS", 0.2)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
            ended.set_result("end")
        except ConnectionResetError:
            ended.set_result("reset")
        writer.close()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = RestClient(Access(f"http://127.0.0.1:{port}"), unacknowledged_seconds=2.0)
        with pytest.raises(UnreachableError):
            await client.create("/p", {})
        async with asyncio.timeout(10):
            assert await ended == "reset"
        await client.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a kernel other than Linux")
def test_the_kernel_gives_up_when_it_is_told_to() -> None:
    made = client_module._impatient_sockets(2.5)((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500


# ── watches ───────────────────────────────────────────────────────────────────────────────────────


def _lines(*events: tuple[str, Object]) -> str:
    return "".join(json.dumps({"type": kind, "object": item}) + "\n" for kind, item in events)


async def _watched(client: RestClient) -> list[tuple[str, Object]]:
    return [event async for event in client.watch("/p", "x=y", "7")]


async def test_a_watch_goes_on_from_its_place_and_asks_for_bookmarks(api: ScriptedApi, client: RestClient) -> None:
    events: list[tuple[str, Object]] = [
        ("ADDED", {"a": 1}),
        ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        ("DELETED", {"a": 1}),
    ]
    api.answer(_lines(*events))
    assert await _watched(client) == events
    asked = dict(api.request.query)
    assert asked.pop("timeoutSeconds")
    assert asked == {"watch": "1", "labelSelector": "x=y", "resourceVersion": "7", "allowWatchBookmarks": "true"}


async def test_events_that_come_in_pieces_are_put_together(api: ScriptedApi, client: RestClient) -> None:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for byte in _lines(("ADDED", {"a": 1}), ("DELETED", {"a": 1})).encode():
            await answer.write(bytes([byte]))
            await asyncio.sleep(0)
        return answer

    api.handler = in_pieces
    assert await _watched(client) == [("ADDED", {"a": 1}), ("DELETED", {"a": 1})]


async def test_a_place_that_the_api_server_forgot_is_told(api: ScriptedApi, client: RestClient) -> None:
    api.answer({"message": "too old resource version"}, status=410)
    with pytest.raises(ExpiredError, match="too old"):
        await _watched(client)
    api.answer(_lines(("ERROR", {"kind": "Status", "code": 410, "message": "too old"})))
    with pytest.raises(ExpiredError, match="too old"):
        await _watched(client)


async def test_a_watch_that_falls_silent_ends_in_an_error(
    api: ScriptedApi, client: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SILENCE_SECONDS", 0.5)

    async def silent(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(_lines(("ADDED", {"a": 1})).encode())
        await asyncio.sleep(30)
        return answer

    api.handler = silent
    async with aclosing(client.watch("/p", "", "7")) as events:
        assert await anext(events) == ("ADDED", {"a": 1})
        with pytest.raises(UnreachableError, match="watch /p: SocketTimeoutError"):
            await anext(events)


async def test_a_watch_that_says_no_event_ends_in_an_error(api: ScriptedApi, client: RestClient) -> None:
    api.answer("<html>login</html>\n")
    with pytest.raises(UnreachableError, match="watch /p: JSONDecodeError"):
        await _watched(client)
    api.answer('{"type": "ADDED"}\n')
    with pytest.raises(UnreachableError, match="watch /p: KeyError"):
        await _watched(client)


async def test_an_event_has_a_bound(api: ScriptedApi, client: RestClient) -> None:
    api.handler = endless = Endless()
    with pytest.raises(UnreachableError, match="longer than 16 MiB"):
        await _watched(client)
    assert endless.sent < 20 * MIB
