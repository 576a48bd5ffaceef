"""A few nodes that break: pods end, containers are killed, machines are lost or cut off, images can't be pulled.

What runs in the pods is played as by `FakeNode`. The nodes alone know what really runs: a pod on a node that is cut off
runs on, whatever the API server has of it; so it is noted here where two trainers ever had one volume at a time.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from aiohttp import web

from gymtrain_api import labels
from tests.support.apiserver import ApiServer
from tests.support.fakenode import NODE, FakeNode, Object, Player, path_of
from tests.support.played import ended

NODES = (NODE, "fake-2", "fake-3")
_MOST_STEPS = 12
_MOST_GRACE_SECONDS = 4.0  # from SIGTERM to a trainer's end
_LOOK_SECONDS = 0.2

type Mood = Literal["", "error", "hang", "garbage"]


class BreakableNode(FakeNode):
    """The nodes; use as a context manager. All coroutines are for `do`.

    Attributes:
        mood: how trainers and vLLM answer.
        pulls_fail: whether pods that start find no image.
        two_trainers: where two trainers had one volume.
    """

    def __init__(self, server: ApiServer, seed: int) -> None:
        super().__init__(server)
        self.selector = f"labelSelector={labels.RUN}"  # sandboxes, too, which are the broker's
        self.mood: Mood = ""
        self.pulls_fail = False
        self.two_trainers: list[str] = []
        self._random = random.Random(seed)
        self._nodes: dict[str, str] = {}  # by path of the pod
        self._players: dict[str, Player] = {}  # by uid of the pod
        self._cut: set[str] = set()
        self._off: set[str] = set()
        self._lost: dict[str, set[str]] = {}  # uids of the pods that a machine had when it stopped, by its name
        self._writers: dict[tuple[str, str], dict[str, str]] = {}  # pods that train, by volume

    async def do[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Does something with the nodes, from another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _start(self) -> None:
        await super()._start()
        for name in NODES[1:]:
            await self.register(name)

    def steps(self, run: str) -> int:
        """A run trains the same number of steps in each attempt."""
        return random.Random(run).randint(2, _MOST_STEPS)

    # ── what breaks ──────────────────────────────────────────────────────────────────────────────

    async def kill(self, uid: str, code: int, reason: str, status: Object | None = None) -> bool:
        """Ends all containers of a pod; a Deployment's are started again. `status` is what the pod's has beside that.
        False where the pod doesn't run."""
        player, task = self._players.get(uid), self._tasks.get(uid)
        if player is None or task is None or task.done():
            return False
        await _cancelled(task)
        if player.role in (labels.Role.TRAINER, labels.Role.PREFLIGHT):
            await player.report("Failed", ended(code, "", reason), ready=False, more=status or {})
        else:
            self._spawn(uid, self._again(player, code, reason))
        return True

    async def cut(self, node: str) -> None:
        """Nothing of the node gets to the API server any more, and nothing to it; its pods run on."""
        self._cut.add(node)

    async def switch_off(self, node: str) -> None:
        """The machine stops, with all that runs on it."""
        self._off.add(node)
        there = [uid for uid, player in self._players.items() if self._nodes.get(player.path) == node]
        tasks = {uid: self._tasks[uid] for uid in there if uid in self._tasks}
        self._lost[node] = {uid for uid, task in tasks.items() if not task.done()}
        for task in tasks.values():
            await _cancelled(task)

    async def heal(self, node: str) -> None:
        """The node is back: it ends what was deleted meanwhile, and tells what has become of the rest."""
        lost = self._lost.pop(node, set())
        self._cut.discard(node)
        self._off.discard(node)
        await self.register(node)
        known = {uid for uid, player in self._players.items() if self._nodes.get(player.path) == node}
        found = await self._call("GET", f"/api/v1/pods?{self.selector}")
        for uid in known - {pod["metadata"]["uid"] for pod in found["items"]}:  # not those that came meanwhile
            self._vanished(uid)
        for pod in found["items"]:
            uid = pod["metadata"]["uid"]
            # A pod without a node may have come under the name of one that ran here, while nobody looked.
            if self._nodes.get(path_of(pod)) not in (None, node):
                continue
            if uid in lost and uid in self._players and "deletionTimestamp" not in pod["metadata"]:
                self._spawn(uid, self._after_power_loss(self._players[uid]))
            self._seen(pod)

    # ── what is played ───────────────────────────────────────────────────────────────────────────

    def _seen(self, pod: Object) -> None:
        if self._nodes.get(path_of(pod)) not in self._cut | self._off:
            super()._seen(pod)

    def _vanished(self, uid: str) -> None:
        player = self._players.get(uid)
        if player is None or self._nodes.get(player.path) not in self._cut:  # it runs on, and is ended after that
            super()._vanished(uid)
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        player = self._players.pop(uid, None)
        if player and player.path not in {other.path for other in self._players.values()}:
            self._nodes.pop(player.path, None)

    async def report(self, path: str, status: Object) -> None:
        """Writes a pod's status once the node gets through."""
        while True:
            if self._nodes.get(path) not in self._cut:
                return await super().report(path, status)
            await asyncio.sleep(_LOOK_SECONDS)

    async def answer(self, value: Any) -> web.StreamResponse:
        """Answers as the mood is."""
        match self.mood:
            case "error":
                return web.Response(status=500, text="broken")
            case "garbage":
                return web.Response(text='{"phase": [1, 2', content_type="application/json")
            case "hang":
                await asyncio.sleep(60)
        return await super().answer(value)

    async def _live(self, pod: Object) -> None:
        player = self.player(pod)
        node = pod["spec"].get("nodeName") or await self._free_node(player)
        self._nodes[player.path] = node
        self._players[pod["metadata"]["uid"]] = player
        await self.bind(pod, node)
        while self.pulls_fail:
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            await player.report("Pending", {"waiting": waiting}, ready=False)
            await asyncio.sleep(1)
        with self._training(pod):
            if player.role is labels.Role.BROKER:
                await self._make_sandboxes(pod)
            await self.play(player)

    async def _free_node(self, player: Player) -> str:
        while True:
            if free := [name for name in NODES if name not in self._cut | self._off]:
                return self._random.choice(free)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _again(self, player: Player, code: int, reason: str) -> None:
        player.restarts += 1
        player.last = ended(code, "", reason)
        await player.report("Running", {"waiting": {"reason": "CrashLoopBackOff"}}, ready=False)
        await asyncio.sleep(1)
        await self.play(player)

    async def _after_power_loss(self, player: Player) -> None:
        if player.role in (labels.Role.TRAINER, labels.Role.PREFLIGHT):
            await player.report("Failed", ended(137, "", "Error"), ready=False)
        else:
            await self._again(player, 137, "Error")

    async def _remove(self, pod: Object, task: asyncio.Task[None]) -> None:
        uid, runs = pod["metadata"]["uid"], not task.done()
        player = self._players.get(uid)
        if runs and player is not None and player.role is labels.Role.TRAINER:
            await asyncio.sleep(self._random.uniform(0, _MOST_GRACE_SECONDS))  # it writes a checkpoint
            runs = not task.done()
        await _cancelled(task)
        if runs and player is not None and player.role is labels.Role.TRAINER:
            await player.report("Failed", ended(143), ready=False)  # its Job waits for that
        self._forget(uid)
        await super()._remove(pod, task)

    async def _make_sandboxes(self, pod: Object) -> None:
        """As the broker of a run does: owned by the run."""
        meta = pod["metadata"]
        run = meta["labels"][labels.RUN]
        found = await self._call(
            "GET", f"/apis/{labels.API_VERSION}/namespaces/{meta['namespace']}/{labels.PLURAL}/{run}"
        )
        if not found:
            return
        owner = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": run, "uid": found["metadata"]["uid"]}
        role = {labels.MANAGED_BY: labels.BROKER_VALUE, labels.RUN: run, labels.ROLE: str(labels.Role.SANDBOX)}
        for number in range(2):
            sandbox = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{run}-sb-{meta['uid'][:5]}-{number}",
                    "labels": role,
                    "ownerReferences": [owner | {"controller": True}],
                },
                "spec": {"containers": [{"name": "sandbox", "image": "fake"}]},
            }
            await self._call("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", sandbox)

    @contextmanager
    def _training(self, pod: Object) -> Iterator[None]:
        """Notes who has the checkpoint volume of a trainer meanwhile."""
        meta = pod["metadata"]
        claims = [v["persistentVolumeClaim"]["claimName"] for v in _claims(pod) if v["name"] == "checkpoints"]
        if meta["labels"].get(labels.ROLE) != labels.Role.TRAINER or not claims:
            yield
            return
        writers = self._writers.setdefault((meta["namespace"], claims[0]), {})
        me = f"{meta['name']} ({meta['uid'][:8]})"
        self.two_trainers += [f"{meta['namespace']}/{claims[0]}: {other} and {me}" for other in writers.values()]
        writers[meta["uid"]] = me
        try:
            yield
        finally:
            del writers[meta["uid"]]


def _claims(pod: Object) -> list[Object]:
    return [volume for volume in pod["spec"].get("volumes", []) if "persistentVolumeClaim" in volume]


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
