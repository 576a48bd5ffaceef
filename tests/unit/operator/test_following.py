"""Following what runs own: watches that go on from where the last one ended, and what readers see meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_kube.errors import ExpiredError, RejectedError, UnreachableError
from gymtrain_operator import following, kinds
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.following import Follower, followers
from gymtrain_operator.kinds import Kind
from tests.support.fake_kube_client import FakeKubeClient

KEY = ("ns", "run")


def _pod(name: str, version: int) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": {labels.RUN: "run"}}}


class _Server(FakeKubeClient):
    """Its versions and watches are those of the test; the last watch goes on without end."""

    def __init__(self, versions: Sequence[str | Exception], watches: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        self.versions_left, self.watches = list(versions), [list(one) for one in watches]
        self.watched_from: list[str] = []
        self.idle = asyncio.Event()

    async def version(self, kind: Kind, namespace: str | None, selector: str) -> str:
        found = self.versions_left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str
    ) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        self.watched_from.append(version)
        for event in self.watches.pop(0) if self.watches else []:
            if isinstance(event, Exception):
                raise event
            yield event
        if not self.watches:
            self.idle.set()
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE", "_LEAST_SECONDS"):
        monkeypatch.setattr(following, name, 0.001)


class _Cache(ChildCache):
    """Notes what the follower does to it. The run was listed before."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        for kind in kinds.CHILDREN:
            if kind is not kinds.POD:
                self.begin(kind, None)

    def begin(self, kind: Kind, namespace: str | None) -> None:
        super().begin(kind, namespace)
        if kind is kinds.POD:
            self.done.append("begin")
            self.fill(KEY, {}, self.want(KEY))

    def lose(self, kind: Kind, namespace: str | None) -> None:
        super().lose(kind, namespace)
        self.done.append("lose")

    @property
    def names(self) -> list[str] | None:
        by_kind = self.read(KEY)
        return None if by_kind is None else [pod["metadata"]["name"] for pod in by_kind["Pod"]]


@asynccontextmanager
async def _followed(server: _Server) -> AsyncIterator[_Cache]:
    """A cache whose pods are followed until the last watch has nothing left to say."""
    cache = _Cache()
    task = asyncio.create_task(Follower(server, cache, kinds.POD, None).follow())
    async with asyncio.timeout(10):
        await server.idle.wait()
    yield cache
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_events_fill_the_cache() -> None:
    server = _Server(["5"], [[("ADDED", _pod("a", 6)), ("ADDED", _pod("b", 7)), ("DELETED", _pod("a", 8))]])
    async with _followed(server) as cache:
        assert cache.names == ["b"]
    assert server.watched_from == ["5"]


async def test_a_watch_goes_on_from_the_last_event_or_bookmark() -> None:
    bookmark = {"metadata": {"resourceVersion": "30"}}
    server = _Server(["5"], [[("ADDED", _pod("b", 6))], [("BOOKMARK", bookmark)], []])
    async with _followed(server) as cache:
        assert cache.done == ["begin"]
    assert server.watched_from == ["5", "6", "30"]


async def test_a_watch_that_lost_its_place_begins_anew() -> None:
    server = _Server(["5", "50"], [[("ADDED", _pod("a", 6)), ExpiredError("too old")], []])
    async with _followed(server) as cache:
        assert cache.done == ["begin", "lose", "begin"]
        assert cache.names == []
    assert server.watched_from == ["5", "50"]


async def test_a_watch_that_broke_once_goes_on_from_there() -> None:
    server = _Server(["5"], [[UnreachableError("reset")], [("ADDED", _pod("b", 6))]])
    async with _followed(server) as cache:
        assert cache.names == ["b"]
        assert cache.done == ["begin"]
    assert server.watched_from == ["5", "5"]


async def test_while_there_is_no_watch_the_cache_says_so() -> None:
    broken = [UnreachableError("refused")]
    server = _Server(["5", UnreachableError("refused"), "50"], [broken, broken, []])
    async with _followed(server) as cache:
        assert cache.done == ["begin", "lose", "lose", "begin"]
    assert server.watched_from == ["5", "5", "50"]


async def test_a_watch_that_is_refused_is_tried_again_without_end() -> None:
    refused = RejectedError("pods is forbidden", final=False)
    server = _Server([*[refused] * 20, "5"], [[("ADDED", _pod("a", 6))]])
    async with _followed(server) as cache:
        assert cache.names == ["a"]


def test_each_kind_of_each_namespace_is_followed() -> None:
    cluster, cache = FakeKubeClient(), ChildCache()
    assert len(followers(cluster, cache, [])) == len(kinds.CHILDREN)
    assert len(followers(cluster, cache, ["a", "b"])) == 2 * len(kinds.CHILDREN)
