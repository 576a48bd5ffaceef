"""Runs that come and go, and what is noted of them all the time."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gymtrain_api import labels
from tests.chaos.memory import Sample
from tests.chaos.story import Life, Story
from tests.support.rest import Rest

type Object = dict[str, Any]

RUNS = f"/apis/{labels.API_VERSION}/{labels.PLURAL}"
_CORE, _APPS, _BATCH = "/api/v1", "/apis/apps/v1", "/apis/batch/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "pods": _CORE,
    "services": _CORE,
    "configmaps": _CORE,
    "secrets": _CORE,
    "serviceaccounts": _CORE,
    "persistentvolumeclaims": _CORE,
    "deployments": _APPS,
    "replicasets": _APPS,
    "jobs": _BATCH,
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "roles": _RBAC,
    "rolebindings": _RBAC,
}
"""Everything that a run may own, by the path of its API."""

_LOOK_SECONDS = 0.25
_GONE_SECONDS = 240.0
_LOOKED_AT_SECONDS = 5.0  # of runs that stay for so long after their end it is looked at what they still have
_APPLY_SECONDS = 300.0
_NAMESPACES_OWN = {"default", "kube-root-ca.crt", "chaos", "swe-tasks"}  # made with a namespace, and not by runs


class Population:
    """The runs of some namespaces.

    Attributes:
        wrong: what must not be, and is of no single run.
        notes: figures that belong into the record.
        samples: of the operator's memory.
    """

    def __init__(self, rest: Rest, namespaces: Sequence[str], drawn: Callable[[int], Life]) -> None:
        """`drawn` makes the life of the run of a number."""
        self.rest = rest
        self.namespaces = namespaces
        self.stories: list[Story] = []
        self.wrong: list[str] = []
        self.notes: list[str] = []
        self.samples: list[Sample] = []
        self._drawn = drawn
        self._by_uid: dict[str, Story] = {}
        self._go_on = True
        self._numbers = iter(range(1, 1_000_000))

    async def watch_the_operator(self) -> None:
        """Takes samples of its memory, without end."""
        raise NotImplementedError

    # ── what faults ask ──────────────────────────────────────────────────────────────────────────

    def alive(self, *states: str) -> list[Story]:
        """Runs that haven't ended, in these states or in any."""
        found = [s for s in self.stories if not s.over and not s.end and not s.by_hand]
        return [story for story in found if not states or story.state in states]

    async def owned(self, kind: str, *, selector: str = labels.RUN) -> list[Object]:
        """Everything of a kind that runs own."""
        found = await self.rest.items(f"{KINDS[kind]}/{kind}", selector)
        return [item for item in found if item["metadata"]["namespace"] in self.namespaces]

    def story_of(self, item: Object) -> Story | None:
        """The run that an object bears the label of: the newest of that name."""
        key = (item["metadata"]["namespace"], (item["metadata"].get("labels") or {}).get(labels.RUN))
        return next((story for story in reversed(self.stories) if story.key == key), None)

    def path(self, kind: str, item: Object) -> str:
        """The path of an object of one of `KINDS`."""
        meta = item["metadata"]
        return f"{KINDS[kind]}/namespaces/{meta['namespace']}/{kind}/{meta['name']}"

    # ── how they live ────────────────────────────────────────────────────────────────────────────

    async def populate(self) -> None:
        """One run after the other, until no more are wanted."""
        while self._go_on:
            life = self._drawn(next(self._numbers))
            await self._live(life)
            if life.again and self._go_on:
                await self._live(life)

    def end_population(self) -> None:
        """No new runs come from now on."""
        self._go_on = False

    async def _live(self, life: Life) -> None:
        story = await self._applied(life)
        if story is None:
            return
        clock = asyncio.get_running_loop().time
        begun, suspended = clock(), False
        while not story.over:
            age = clock() - begun
            if life.delete_after is not None and age > life.delete_after and not story.by_hand:
                await self._delete(story)
            if life.suspend_after is not None and not story.end:
                wanted = life.suspend_after < age < life.suspend_after + life.resume_after
                if wanted != suspended:
                    suspended = wanted
                    await self._patch(story, {"spec": {"suspend": wanted}})
            if story.end and life.ttl is None and not story.by_hand:
                if life.linger > _LOOKED_AT_SECONDS:
                    await self._cleared(story)
                await asyncio.sleep(life.linger)
                await self.look_back(story)
                await self._delete(story)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _applied(self, life: Life) -> Story | None:
        path = f"/apis/{labels.API_VERSION}/namespaces/{life.namespace}/{labels.PLURAL}"
        for _ in range(int(_APPLY_SECONDS * 2)):
            status, found = await self.rest.ask("POST", path, life.manifest)
            if status < 300:
                break
            if status not in (403, 404, 409):  # the namespace is on its way out, or the run of that name is
                self.wrong.append(f"{life.name} can't be applied: {found.get('message')}")
                return None
            await asyncio.sleep(0.5)
        else:
            self.wrong.append(f"{life.name} can't be applied: {found.get('message')}")
            return None
        story = Story(life, found["metadata"]["uid"])
        self.stories.append(story)
        self._by_uid[story.uid] = story
        return story

    async def _patch(self, story: Story, changes: Object) -> None:
        await self.rest.ask("PATCH", self.run_path(story), changes | {"metadata": {"uid": story.uid}})

    async def _delete(self, story: Story) -> None:
        story.by_hand = True
        await self.rest.ask("DELETE", self.run_path(story), {"preconditions": {"uid": story.uid}})

    def run_path(self, story: Story) -> str:
        """The path of a run."""
        return f"/apis/{labels.API_VERSION}/namespaces/{story.life.namespace}/{labels.PLURAL}/{story.life.name}"

    async def _cleared(self, story: Story) -> None:
        """Waits until a run that has ended has no more servers, trainers and sandboxes."""
        end = asyncio.get_running_loop().time() + _GONE_SECONDS
        selector = f"{labels.RUN}={story.life.name}"
        while not story.over:
            items = []
            for kind in ("deployments", "jobs", "pods"):
                path = f"{KINDS[kind]}/namespaces/{story.life.namespace}/{kind}"
                items += [(kind, item) for item in await self.rest.items(path, selector)]
            left = [f"{kind}/{item['metadata']['name']}" for kind, item in items if _goes_on(kind, item)]
            if not left:
                return
            if asyncio.get_running_loop().time() > end:
                story.wrong.append(f"it ended and still has {left}")
                return
            await asyncio.sleep(2)

    async def look_back(self, story: Story) -> None:
        """What is to be seen of a run that has ended, before it is deleted."""

    # ── what is noted ────────────────────────────────────────────────────────────────────────────

    async def follow_runs(self) -> None:
        """Notes each status of each run. A run that a list no longer has is gone."""
        async for event, run in self.rest.watch(RUNS):
            story = self._by_uid.get(run["metadata"]["uid"])
            if story is not None:
                story.tell(run)
                story.over = story.over or event == "DELETED"

    async def find_gone(self) -> None:
        """The end of a run may fall into a gap of the watch."""
        while True:
            there = {run["metadata"]["uid"] for run in await self.rest.items(RUNS)}
            await asyncio.sleep(1)  # the list is older than what is applied meanwhile
            for story in [s for s in self.stories if not s.over]:
                if story.uid not in there and not await self._is_there(story):
                    story.over = True
            await asyncio.sleep(4)

    async def _is_there(self, story: Story) -> bool:
        _, found = await self.rest.ask("GET", self.run_path(story))
        return bool(found.get("metadata", {}).get("uid") == story.uid)

    async def look_for_doubles(self) -> None:
        """No run has two Jobs that go on."""
        while True:
            going: dict[str, list[str]] = {}
            for job in await self.owned("jobs"):
                done = {c["type"] for c in job["status"].get("conditions", []) if c["status"] == "True"}
                if not done & {"Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"}:
                    owner = job["metadata"]["ownerReferences"][0]["uid"]
                    going.setdefault(owner, []).append(job["metadata"]["name"])
            self.wrong += [f"two Jobs at once: {names}" for names in going.values() if len(names) > 1]
            await asyncio.sleep(2)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def leftovers(self) -> list[str]:
        """What is left of runs that are gone, once there has been time to collect it."""
        end = asyncio.get_running_loop().time() + _GONE_SECONDS
        while True:
            left = await self._left()
            if not left or asyncio.get_running_loop().time() > end:
                return left
            await asyncio.sleep(2)

    async def _left(self) -> list[str]:
        kept = {(s.life.namespace, f"{s.life.name}-checkpoints") for s in self.stories if s.life.keeps_volume}
        found = []
        for kind in KINDS:
            for item in await self.rest.items(f"{KINDS[kind]}/{kind}"):  # those too that have lost their labels
                meta = item["metadata"]
                if meta["namespace"] not in self.namespaces or meta["name"] in _NAMESPACES_OWN:
                    continue
                if kind == "persistentvolumeclaims" and (meta["namespace"], meta["name"]) in kept:
                    continue
                found.append(f"{kind}/{meta['namespace']}/{meta['name']}")
        return found


def _goes_on(kind: str, item: Object) -> bool:
    if kind == "pods":
        return item["status"].get("phase") not in ("Succeeded", "Failed")
    if kind == "jobs":
        conditions = item["status"].get("conditions", [])
        return not any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
    return True


def chosen(stories: Iterable[Story], draw: random.Random) -> Story | None:
    """One of them; None where there is none."""
    known = sorted(stories, key=lambda story: story.key)
    return draw.choice(known) if known else None
