"""Templates and pools of agent-sandbox: what claims refer to is there, whatever is removed meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gymtrain_api import agent_sandbox
from gymtrain_broker.backends import agent_sandboxes
from gymtrain_broker.backends.agent_sandboxes import AgentTemplates
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_kube.errors import ConflictError, UnreachableError
from tests.unit.broker.conftest import settings

EXTENSIONS = "/apis"
POOLS, TEMPLATES = f"{EXTENSIONS}/{agent_sandbox.POOLS}", f"{EXTENSIONS}/{agent_sandbox.TEMPLATES}"


class Kube:
    """The API server, as far as names go."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.before_delete: Callable[[str], Awaitable[None]] | None = None

    async def create(self, path: str, manifest: dict[str, Any], *, urgent: bool) -> None:
        item = f"{path}/{manifest['metadata']['name']}"
        if item in self.there:
            raise ConflictError("already exists")
        self.there.add(item)

    async def delete(self, path: str, uid: str, *, urgent: bool) -> None:
        if self.before_delete is not None:
            await self.before_delete(path)
        self.there.discard(path)


class Bench:
    """Templates of a run with at most one idle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agent_sandboxes, "MOST_IDLE", 1)
        self.config = replace(settings(), backend="AgentSandbox")
        self.kube = Kube()
        self.templates = AgentTemplates(cast(Any, self.kube), self.config, EXTENSIONS)
        self.claims: set[str] = set()

    async def claim(self, image: str) -> str:
        """Makes a claim for an image; the name that it refers to."""
        name = self.templates.pool(PodShapes(self.config).of(image))
        async with self.templates.needed(name, urgent=True):
            await asyncio.sleep(0)
            self.claims.add(name)
        return name

    async def prune(self) -> None:
        await self.templates.prune(lambda: self.claims)

    def is_whole(self, name: str) -> bool:
        return {f"{POOLS}/{name}", f"{TEMPLATES}/{name}"} <= self.kube.there

    def is_gone(self, name: str) -> bool:
        return not {f"{POOLS}/{name}", f"{TEMPLATES}/{name}"} & self.kube.there


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_what_is_claimed_while_others_are_removed_stays(bench: Bench) -> None:
    names = [await bench.claim(f"task:{number}") for number in range(4)]
    bench.claims.clear()
    second: list[str] = []

    async def claim_the_second(path: str) -> None:
        if not second:
            second.append(await bench.claim("task:1"))

    bench.kube.before_delete = claim_the_second
    await bench.prune()
    assert bench.is_whole(names[1])
    assert bench.is_gone(names[0])
    assert bench.is_gone(names[2])


async def test_what_is_being_removed_is_made_anew_for_a_claim(bench: Bench) -> None:
    names = [await bench.claim(f"task:{number}") for number in range(2)]
    bench.claims.clear()
    claims: list[asyncio.Task[str]] = []

    async def claim_the_same(path: str) -> None:
        if not claims:
            claims.append(asyncio.create_task(bench.claim("task:0")))
        await asyncio.sleep(0)

    bench.kube.before_delete = claim_the_same
    await bench.prune()
    assert await claims[0] == names[0]
    assert bench.is_whole(names[0])


async def test_a_claim_that_is_being_made_keeps_its_template(bench: Bench) -> None:
    names = [await bench.claim(f"task:{number}") for number in range(2)]
    bench.claims.clear()
    async with bench.templates.needed(names[0], urgent=True):
        for number in range(2, 5):
            await bench.claim(f"task:{number}")
        bench.claims.clear()
        await bench.prune()
        assert bench.is_whole(names[0])


@pytest.mark.parametrize("failing", [POOLS, TEMPLATES])
async def test_what_could_not_be_removed_wholly_does_not_count_as_there(bench: Bench, failing: str) -> None:
    names = [await bench.claim(f"task:{number}") for number in range(3)]
    bench.claims.clear()

    async def fail(path: str) -> None:
        if path.startswith(failing):
            bench.kube.there.discard(path)  # it was done, but the answer was lost
            raise UnreachableError("no answer")

    bench.kube.before_delete = fail
    await bench.prune()
    bench.kube.before_delete = None
    assert await bench.claim("task:0") == names[0]
    assert bench.is_whole(names[0])


async def test_what_could_not_be_removed_is_removed_later(bench: Bench) -> None:
    names = [await bench.claim(f"task:{number}") for number in range(3)]
    bench.claims.clear()

    async def fail(path: str) -> None:
        raise UnreachableError("no answer")

    bench.kube.before_delete = fail
    await bench.prune()
    assert bench.is_whole(names[0])
    bench.kube.before_delete = None
    await bench.prune()
    assert bench.is_gone(names[0])
    assert bench.is_gone(names[1])
    assert bench.is_whole(names[2])
