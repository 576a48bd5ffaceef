"""A node without containers: it plays the kubelet and what runs in the pods of a run.

The API server and the controllers are real, the pods are not. Each pod is bound, reported running and, after
its time, ended, as its role says:

    preflight   ends at once; its log (served to the API server as the kubelet does) holds good verdicts
    gym, broker run, are ready
    inference   runs and answers as vLLM does; ready once the run's trainer has "pushed weights"
    its workers run, are ready
    gateway     runs; ready when vLLM is
    trainer     waits for the vLLM pods, counts its steps on /progress, ends with its report

A pod with a scheduling gate waits until that is gone; one that names another scheduler, until that has given it to the
node.

A run whose name starts with `bad-` fails preflight; with `refused-`, its trainer ends with exit code 78; with
`long-`, it trains for as long as any test looks, and with `slow-` for 20 s; with `chatty-`, its preflight prints 32 MiB
before its verdicts.
The API server may go away and come back meanwhile. Pods have addresses in a part of 127.0.0.0/8, where their ports are
the real ones; each process has another part, as several may test on one machine.
"""

import asyncio
import json
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from gymtrain_api import labels, wiring
from gymtrain_api.weight_version import WeightVersion
from tests.support.apiserver import ApiServer
from tests.support.own_loop import OwnLoop
from tests.support.played import GYM_VERDICT, INFO, MAX_STEPS, OPENAPI, VERDICTS, ended, now, serving

NODE = "fake"
_LONG_STEPS = 600
_SLOW_STEPS = 20
_STEP_SECONDS = 1.0
_LINE = "🗒".encode() * 4095 + b"...\n"  # 16 KiB, as runtimes store them; four bytes a character once it is text
_CHATTY_LINES = 2048
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0)  # seconds between the tries of a call that isn't answered
_CALL_SECONDS = 30.0

type Object = dict[str, Any]


@dataclass
class _Run:
    """What the pods of a run know of each other."""

    name: str
    inference_started: asyncio.Event = field(default_factory=asyncio.Event)
    weights: asyncio.Event = field(default_factory=asyncio.Event)


class FakeNode(OwnLoop):
    """The node, in a thread of its own; use as a context manager."""

    def __init__(self, server: ApiServer, *, long_steps: int = _LONG_STEPS) -> None:
        """`long_steps` is how many steps of a second a run trains whose name starts with `long-`."""
        super().__init__()
        self._server = server
        self.long_steps = long_steps
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by uid of the pod
        self._removals: set[asyncio.Task[None]] = set()
        self._runs: dict[tuple[str, str], _Run] = {}
        self._addresses = 0
        self.selector = f"labelSelector={labels.MANAGED_BY}%3D{labels.MANAGED_BY_VALUE}"  # of the pods that it plays
        self.errors: list[str] = []

    async def _start(self) -> None:
        self._http = aiohttp.ClientSession(
            self._server.url,
            headers={"Authorization": f"Bearer {self._server.token}"},
            connector=aiohttp.TCPConnector(ssl=self._server.client_tls(), limit=50),
        )
        kubelet = web.Application()
        kubelet.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._kubelet = web.AppRunner(kubelet, access_log=None)
        await self._kubelet.setup()
        site = web.TCPSite(self._kubelet, "127.0.0.1", 0, ssl_context=self._server.server_tls())
        await site.start()
        assert site._server is not None
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        await self.register(NODE)
        self._watcher = asyncio.create_task(self._watch())

    async def register(self, name: str) -> None:
        """Makes the object of a node."""
        await self._call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        await self._call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    async def _stop(self) -> None:
        tasks = [self._watcher, *self._tasks.values(), *self._removals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.close()
        await self._kubelet.cleanup()

    async def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        # As the kubelet does: conditions that others wrote stay.
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        for pause in (*_PAUSES, None):
            try:
                async with self._http.request(
                    method,
                    path,
                    data=json.dumps(body),
                    headers={"Content-Type": kind},
                    timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS),
                ) as answer:
                    status, text = answer.status, await answer.text()
            except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
                status, text = 0, repr(error)
            if pause is None or (0 < status < 500 and status != 429):
                break
            await asyncio.sleep(pause)
        if status not in (404, 409) and not 0 < status < 400 and "being terminated" not in text:  # with its namespace
            self.errors.append(f"{method} {path}: {status} {text[:300]}")
        found: Object = json.loads(text) if 0 < status < 300 else {}
        return found

    # ── pods ─────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            try:
                await self._watch_once()
            except (aiohttp.ClientError, OSError, ValueError, KeyError):  # the API server is down, or starts again
                await asyncio.sleep(_PAUSES[0])

    async def _watch_once(self) -> None:
        found = await self._call("GET", f"/api/v1/pods?{self.selector}")
        for uid in self._tasks.keys() - {pod["metadata"]["uid"] for pod in found["items"]}:
            self._vanished(uid)
        for pod in found["items"]:
            self._seen(pod)
        version = found["metadata"]["resourceVersion"]
        path = f"/api/v1/pods?watch=1&{self.selector}&resourceVersion={version}"
        async with self._http.get(path, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 22) as stream:
            async for line in stream.content:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._seen(event["object"])
                elif event["type"] == "DELETED":
                    self._vanished(event["object"]["metadata"]["uid"])

    def _seen(self, pod: Object) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        if "deletionTimestamp" in meta:
            if uid in self._tasks:
                removal = asyncio.create_task(self._remove(pod, self._tasks.pop(uid)))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)
                removal.add_done_callback(self._report)
        elif uid not in self._tasks and not _waits(pod):
            self._spawn(uid, self._live(pod))

    def _vanished(self, uid: str) -> None:
        """The pod is gone without having been ended here: nobody may ask it anything any more."""
        task = self._tasks.pop(uid, None)
        if task:
            task.cancel()

    def _spawn(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[key] = task
        task.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            self.errors.append(repr(task.exception()))

    async def _remove(self, pod: Object, task: asyncio.Task[None]) -> None:
        task.cancel()
        await self.confirm(pod)

    async def confirm(self, pod: Object) -> None:
        """Tells the API server that the pod has ended, and may go."""
        meta = pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        await self._call("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options)

    async def _live(self, pod: Object) -> None:
        if not pod["spec"].get("nodeName"):
            await self.bind(pod, NODE)
        await self.play(self.player(pod))

    async def bind(self, pod: Object, node: str) -> None:
        """Gives the pod to a node, as the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        name = {"name": pod["metadata"]["name"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": name, "target": target}
        await self._call("POST", f"{path_of(pod)}/binding", binding)

    def player(self, pod: Object) -> "Player":
        """What plays the pod, at an address of its own."""
        self._addresses += 1
        address = f"127.{16 + os.getpid() % 200}.{self._addresses // 250}.{self._addresses % 250 + 1}"
        return Player(self, pod, address, self._run_of(pod["metadata"]))

    async def play(self, player: "Player") -> None:
        """Plays a pod to its end."""
        await {
            labels.Role.PREFLIGHT: player.preflight,
            labels.Role.GYM: player.gym,
            labels.Role.INFERENCE: player.inference,
            labels.Role.INFERENCE_WORKER: player.gym,
            labels.Role.GATEWAY: player.gateway,
            labels.Role.BROKER: player.gym,
            labels.Role.SANDBOX: player.gym,
            labels.Role.TRAINER: player.trainer,
        }[player.role]()

    def _run_of(self, meta: Object) -> _Run:
        name = meta["labels"][labels.RUN]
        return self._runs.setdefault((meta["namespace"], name), _Run(name))

    def steps(self, run: str) -> int:
        """How many a run of that name trains."""
        if run.startswith("long-"):
            return self.long_steps
        return _SLOW_STEPS if run.startswith("slow-") else MAX_STEPS

    async def answer(self, value: Any) -> web.StreamResponse:
        """What a pod answers whom it has `value` for."""
        return web.json_response(value)

    async def report(self, path: str, status: Object) -> None:
        """Writes a pod's status."""
        await self._call("PATCH", f"{path}/status", {"status": status})

    async def _logs(self, request: web.Request) -> web.Response:
        """The log as the kubelet serves it: the last `tailLines` lines, and of these the first `limitBytes` bytes."""
        run, _, _ = request.match_info["pod"].partition("-preflight-")
        container = request.match_info["container"]
        if container not in VERDICTS or "-preflight-" not in request.match_info["pod"]:
            return web.Response(text="played\n")
        document: wiring.Document = VERDICTS[container]
        if container == "gym" and run.startswith("bad-"):
            finding = wiring.Finding(where="spec.gym.configPaths[0]", message="no such file")
            document = GYM_VERDICT.model_copy(update={"findings": [finding]})
        verdict = f"{wiring.PREFLIGHT_MARK}{document.model_dump_json()}\n".encode()
        lines = int(request.query.get("tailLines", "1000000"))
        noise = _LINE * min(_CHATTY_LINES, lines - 1) if run.startswith("chatty-") else b""
        return web.Response(body=(noise + verdict)[: int(request.query.get("limitBytes", len(noise + verdict)))])


class Player:
    """What one pod does.

    Attributes:
        restarts: how often its containers were started again.
        last: how they ended the last time.
    """

    def __init__(self, node: FakeNode, pod: Object, address: str, run: _Run) -> None:
        self._node = node
        self.role = labels.Role(pod["metadata"]["labels"][labels.ROLE])
        self.restarts = 0
        self.last: Object = {}
        self._containers = [c["name"] for c in pod["spec"]["containers"]]
        self.path = path_of(pod)
        self._address = address
        self._run = run
        self._attempt = int(pod["metadata"]["labels"].get(labels.ATTEMPT, "1"))
        self._progress = wiring.TrainerProgress(phase="starting", max_steps=MAX_STEPS)

    async def preflight(self) -> None:
        await self._running(ready=True)
        await asyncio.sleep(0.5)
        await self._ended(0, "")

    async def gym(self) -> None:
        await asyncio.sleep(0.5)
        await self._running(ready=True)

    async def inference(self) -> None:
        answers = {"/openapi.json": OPENAPI, "/server_info": INFO}
        async with serving(self._node.answer, self._address, wiring.INFERENCE_PORT, answers):
            await self._running(ready=False)
            self._run.inference_started.set()
            await self._run.weights.wait()
            await self._running(ready=True)
            await asyncio.Event().wait()

    async def gateway(self) -> None:
        await self._running(ready=False)
        await self._run.weights.wait()
        await self._running(ready=True)

    async def trainer(self) -> None:
        answers = {"/progress": lambda: json.loads(self._progress.model_dump_json())}
        async with serving(self._node.answer, self._address, wiring.TRAINER_PORT, answers):
            await self._running(ready=True)
            self._say(phase="waiting_for_servers")
            await self._run.inference_started.wait()
            if self._run.name.startswith("refused-"):
                self._say(phase="failed", message="the reward is always the same")
                await self._ended(wiring.ExitCode.REFUSED, self._progress.model_dump_json())
                return
            self._run.weights.set()
            for step in range(self._node.steps(self._run.name) + 1):
                version = str(WeightVersion(self._run.name, self._attempt, step + 1))
                self._say(phase="training", step=step, reward=step / 10, weight_version=version, transport="HTTPFull")
                await asyncio.sleep(_STEP_SECONDS)
            self._say(phase="complete")
            await self._ended(0, self._progress.model_dump_json())

    def _say(self, **changes: Any) -> None:
        self._progress = self._progress.model_copy(update=changes | {"updated_at": time.time()})

    async def _running(self, *, ready: bool) -> None:
        state = {"running": {"startedAt": now()}}
        await self.report("Running", state, ready=ready)

    async def _ended(self, code: int, message: str, reason: str = "") -> None:
        await self.report("Succeeded" if code == 0 else "Failed", ended(code, message, reason), ready=False)

    async def report(self, phase: str, state: Object, *, ready: bool, more: Object | None = None) -> None:
        """Writes the status of the pod, all of whose containers are in the same state; `more` is put over it."""
        statuses = [
            {
                "name": name,
                "ready": ready,
                "started": phase == "Running",
                "restartCount": self.restarts,
                "image": "fake",
                "imageID": "fake",
                "state": state,
                "lastState": self.last,
            }
            for name in self._containers
        ]
        truth = {True: "True", False: "False"}
        conditions = [
            {"type": kind, "status": truth[value], "lastTransitionTime": now()}
            for kind, value in {
                "PodScheduled": True,
                "Initialized": True,
                "ContainersReady": ready,
                "Ready": ready,
            }.items()
        ]
        status = {"phase": phase, "podIP": self._address, "podIPs": [{"ip": self._address}], "conditions": conditions}
        await self._node.report(self.path, status | {"containerStatuses": statuses, "startTime": now(), **(more or {})})


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    others = spec.get("schedulerName", "default-scheduler") != "default-scheduler" and not spec.get("nodeName")
    return bool(others or spec.get("schedulingGates"))


def path_of(pod: Object) -> str:
    """The pod's path on the API server."""
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
