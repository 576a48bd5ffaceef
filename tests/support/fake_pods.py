"""An API server that serves pods alone, a kubelet that starts them at once, and the daemons in them: for the broker.

    fake = FakeCluster()
    await fake.start()

All pods have addresses of this machine's loopback network; one server plays all daemons and tells them apart by the
address that was called. What a real cluster does slowly or by chance happens here when a test says so.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

type Object = dict[str, Any]

_SANDBOX = "sandbox"


def now() -> str:
    """As the API server writes times, but to the microsecond."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class FakeCluster:
    """Pods, their API server, their kubelet, their daemons."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.writes: Counter[str] = Counter()  # by verb
        self.lists = 0
        self.starts = True  # whether the kubelet starts pods by itself
        self.start_seconds = 0.0
        self.images: dict[str, tuple[str, str]] = {}  # by image: what the kubelet says instead of pulling it
        self.full = False  # whether the scheduler has no node
        self.intercept: Callable[[web.Request], Awaitable[web.Response]] | None = None  # stands in for creation
        self.refuse: Callable[[str, Object], web.Response | None] = lambda verb, body: None
        self.lose: Counter[str] = Counter()  # answers of writes, by verb, that get lost after the write was done
        self.down = False
        self.idle: dict[str, float] = {}  # seconds, by pod; others have been idle since they started
        self.reached: set[str] | None = (
            set()
        )  # addresses that sandboxes reach; None: their daemon doesn't know the call
        self.reach_calls: list[str] = []  # pods that were asked
        self.deaf: set[str] = set()  # pods whose daemon doesn't answer
        self.instances = True  # whether daemons tell which one they are
        self.resets: list[str] = []
        self.restarts = True  # whether the kubelet starts containers anew
        self.calls: list[tuple[str, str, bytes]] = []  # method, path and body of other calls to daemons
        self.deletion_seconds = 0.0
        self._version = 100
        self._oldest = 0
        self._history: list[tuple[int, bytes]] = []  # version, line of a watch: of pods
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._api: TestServer | None = None
        self._daemons: TestServer | None = None
        self._addresses = 0

    async def start(self) -> "FakeCluster":
        """Listens."""
        api = web.Application()
        pods = "/api/v1/namespaces/{namespace}/pods"
        api.add_routes(
            [
                web.get(pods, self._get_all),
                web.post(pods, self._post),
                web.get(pods + "/{name}", self._get),
                web.patch(pods + "/{name}", self._patch),
                web.delete(pods + "/{name}", self._delete),
                *self.routes(),
            ]
        )
        daemons = web.Application()
        daemons.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/v1/status", self._idle_seconds),
                web.post("/v1/reach", self._reach),
                web.post("/v1/reset", self._reset),
                web.route("*", "/{path:.*}", self._other),
            ]
        )
        self._api = TestServer(api, host="127.0.0.1")
        self._daemons = TestServer(daemons, host="0.0.0.0")
        await self._api.start_server(shutdown_timeout=0.1)
        await self._daemons.start_server(shutdown_timeout=0.1)
        return self

    def routes(self) -> list[web.RouteDef]:
        """What else the API server serves."""
        return []

    def notes(self, name: str) -> dict[str, str]:
        """Annotations of the object that carries the lease of a pod."""
        return dict(self.pods[name]["metadata"]["annotations"])

    def annotate(self, name: str, notes: dict[str, str]) -> None:
        """Changes them, as another broker would."""
        self.update(name, lambda pod: pod["metadata"]["annotations"].update(notes))

    def silently(self, name: str, notes: dict[str, str]) -> None:
        """The same, and no watch tells of it."""
        self.pods[name]["metadata"]["annotations"].update(notes)

    def vanish(self, name: str) -> None:
        """A pod is gone, and no watch tells of it."""
        self.pods.pop(name)

    def end_at(self, name: str, seconds: float) -> None:
        """Lets the pod's own end come so long after its start."""
        self.update(name, lambda pod: pod["spec"].update(activeDeadlineSeconds=seconds))

    async def stop(self) -> None:
        """Ends everything."""
        self.down = True
        self._notify()
        for task in list(self._tasks):
            task.cancel()
        for server in (self._api, self._daemons):
            if server is not None:
                await server.close()

    @property
    def url(self) -> str:
        """Of the API server."""
        assert self._api is not None
        return f"http://127.0.0.1:{self._api.port}"

    @property
    def daemon_port(self) -> int:
        """The same at all pods."""
        assert self._daemons is not None
        assert self._daemons.port is not None
        return self._daemons.port

    # What tests do to the cluster

    def update(self, name: str, change: Callable[[Object], None]) -> None:
        """Changes a pod as a part of the cluster would."""
        pod = copied(self.pods[name])
        change(pod)
        self._store(pod, "MODIFIED")

    def put(self, pod: Object) -> None:
        """Somebody else makes a pod."""
        self._store(copied(pod), "NEW")

    def remove(self, name: str) -> None:
        """A pod is gone."""
        pod = self.pods.pop(name, None)
        if pod is not None:
            self._store(pod, "DELETED")

    def forget_history(self) -> None:
        """Watches from before now get 410, those that are open included."""
        self._oldest = self._version + 1
        self._version += 1
        self._notify()

    def container(self, name: str, **status: Any) -> None:
        """Sets fields of the sandbox container's status."""

        def change(pod: Object) -> None:
            pod["status"]["containerStatuses"] = [_status_of(pod) | status]

        self.update(name, change)

    def restart_container(self, name: str, reason: str = "Completed", exit_code: int = 0, message: str = "") -> None:
        """The container ends, and the kubelet starts it anew."""

        def change(pod: Object) -> None:
            status = _status_of(pod)
            ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": now()}
            status |= {"restartCount": status["restartCount"] + 1, "lastState": {"terminated": ended}}
            status["state"] = {"running": {"startedAt": now()}}
            pod["status"]["containerStatuses"] = [status]

        self.update(name, change)

    def end_container(self, name: str, reason: str, exit_code: int, message: str = "") -> None:
        """The container ends, and with restartPolicy Never the pod."""

        def change(pod: Object) -> None:
            ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": now()}
            pod["status"]["containerStatuses"] = [_status_of(pod) | {"state": {"terminated": ended}}]
            pod["status"]["phase"] = "Failed"

        self.update(name, change)

    def waiting(self, name: str, reason: str, message: str) -> None:
        """The container can't start."""
        self.container(name, state={"waiting": {"reason": reason, "message": message}}, imageID="")

    def run_pod(self, name: str) -> None:
        """The kubelet starts a pod."""
        self._addresses += 1
        address = f"127.{1 + self._addresses // 60000}.{self._addresses // 250 % 240}.{1 + self._addresses % 250}"

        def change(pod: Object) -> None:
            pod["status"] = {
                "phase": "Running",
                "podIP": address,
                "startTime": now(),
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [
                    {
                        "name": _SANDBOX,
                        "image": pod["spec"]["containers"][0]["image"],
                        "imageID": "sha256:1",
                        "restartCount": 0,
                        "state": {"running": {"startedAt": now()}},
                    }
                ],
            }

        self.update(name, change)

    # The kubelet and the scheduler

    async def _begin(self, name: str) -> None:
        if self.start_seconds:
            await asyncio.sleep(self.start_seconds)
        pod = self.pods.get(name)
        if pod is None or not self.starts:
            return
        image = pod["spec"]["containers"][0]["image"]
        if self.full:
            unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
            self.update(name, lambda one: one["status"].update(conditions=[unscheduled]))
        elif image in self.images:
            reason, message = self.images[image]
            self.waiting(name, reason, message)
        else:
            self.run_pod(name)

    def retry(self) -> None:
        """The scheduler and the kubelet try again with all pods that don't run."""
        for name, pod in list(self.pods.items()):
            if "podIP" not in pod["status"]:
                self._spawn(self._begin(name))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _store(self, pod: Object, kind: str) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        if kind != "DELETED":
            self.pods[pod["metadata"]["name"]] = pod
        line = json.dumps({"type": "ADDED" if kind == "NEW" else kind, "object": pod}).encode() + b"\n"
        self._history.append((self._version, line))
        self._notify()

    def _notify(self) -> None:
        self._changed, before = asyncio.Event(), self._changed
        before.set()

    # The API server

    async def _get_all(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return refusal(503, "down")
        if request.query.get("watch"):
            return await self._watch(request)
        self.lists += 1
        return web.json_response(
            {"metadata": {"resourceVersion": str(self._version)}, "items": list(self.pods.values())}
        )

    async def _watch(self, request: web.Request, history: list[tuple[int, bytes]] | None = None) -> web.StreamResponse:
        history = self._history if history is None else history
        place = int(request.query["resourceVersion"])
        if place < self._oldest:
            return refusal(410, "too old resource version")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        next_index = sum(version <= place for version, _ in history)
        deadline = time.monotonic() + float(request.query.get("timeoutSeconds", "60"))
        while not self.down and time.monotonic() < deadline:
            if place < self._oldest:
                gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
                await answer.write(json.dumps(gone).encode() + b"\n")
                return answer
            changed, lines = self._changed, []
            for version, line in history[next_index:]:
                lines.append(line)
                next_index, place = next_index + 1, version
            if lines:
                await answer.write(b"".join(lines))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await changed.wait()
        return answer

    async def _get(self, request: web.Request) -> web.Response:
        return self._read(self.pods.get(request.match_info["name"]))

    def _read(self, item: Object | None) -> web.Response:
        if self.down:
            return refusal(503, "down")
        return self.refuse("GET", item or {}) or (refusal(404, "not found") if item is None else reply(item))

    async def _post(self, request: web.Request) -> web.Response:
        return await (self.intercept or self.create)(request)

    async def create(self, request: web.Request) -> web.Response:
        """POST."""
        pod = await request.json()
        if (refused := self._refused("POST", pod)) is not None:
            return refused
        if pod["metadata"]["name"] in self.pods:
            return refusal(409, "already exists", "AlreadyExists")
        return self._answered("POST", reply(self._made(pod), 201))

    def _made(self, pod: Object) -> Object:
        pod["metadata"] |= {"uid": f"uid-{self._version}", "creationTimestamp": now()}
        pod["status"] = {"phase": "Pending"}
        self._store(pod, "NEW")
        made = copied(pod)
        if self.starts:
            self._spawn(self._begin(pod["metadata"]["name"]))
        return made

    async def _patch(self, request: web.Request) -> web.Response:
        return await self._patch_one(request, self.pods, self._store)

    async def _patch_one(
        self, request: web.Request, items: Mapping[str, Object], store: Callable[[Object, str], None]
    ) -> web.Response:
        operations = await request.json()
        if (refused := self._refused("PATCH", operations)) is not None:
            return refused
        name = request.match_info["name"]
        if name not in items:
            return refusal(404, "not found")
        item = copied(items[name])
        if not patched(item, operations):
            return refusal(422, "the server rejected our request due to an error in our request: test failed")
        store(item, "MODIFIED")
        return self._answered("PATCH", reply(item))

    async def _delete(self, request: web.Request) -> web.Response:
        return await self._delete_one(request, self.pods, lambda name, _: self._end(name))

    def _end(self, name: str) -> None:
        if self.deletion_seconds:
            self.update(name, lambda pod: pod["metadata"].update(deletionTimestamp=now()))
            asyncio.get_running_loop().call_later(self.deletion_seconds, self.remove, name)
        else:
            self.remove(name)

    async def _delete_one(
        self, request: web.Request, items: Mapping[str, Object], end: Callable[[str, Object], None]
    ) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        if (refused := self._refused("DELETE", body)) is not None:
            return refused
        name = request.match_info["name"]
        if name not in items:
            return refusal(404, "not found")
        uid = (body.get("preconditions") or {}).get("uid")
        if uid and uid != items[name]["metadata"]["uid"]:
            return refusal(409, "the UID in the precondition does not match")
        end(name, body)
        return self._answered("DELETE", reply({"kind": "Status", "status": "Success"}))

    def _refused(self, verb: str, body: Any) -> web.Response | None:
        if self.down:
            return refusal(503, "down")
        self.writes[verb] += 1
        return self.refuse(verb, body)

    def _answered(self, verb: str, answer: web.Response) -> web.Response:
        if self.lose[verb]:
            self.lose[verb] -= 1
            return refusal(504, "the answer got lost")
        return answer

    # The daemons

    def _pod_at(self, request: web.Request) -> str | None:
        """The pod whose address was called."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        for name, pod in self.pods.items():
            if pod["status"].get("podIP") == address and "running" in _status_of(pod)["state"]:
                return None if name in self.deaf else name
        return None

    def instance(self, name: str) -> str:
        """What the daemon of a pod calls itself, in this life of its container."""
        return f"{name}/{_status_of(self.pods[name])['restartCount']}"

    async def _healthz(self, request: web.Request) -> web.Response:
        name = self._pod_at(request)
        if name is None:
            return refusal(503, "no daemon")
        return web.json_response({"version": "test"} | ({"instance": self.instance(name)} if self.instances else {}))

    async def _reach(self, request: web.Request) -> web.Response:
        name = self._pod_at(request)
        if name is None or self.reached is None:
            return refusal(503, "no daemon")
        asked = (await request.json())["addresses"]
        self.reach_calls.append(name)
        return web.json_response({"reached": [address for address in asked if address in self.reached]})

    async def _idle_seconds(self, request: web.Request) -> web.Response:
        name = self._pod_at(request)
        if name is None:
            return refusal(503, "no daemon")
        begin = datetime.fromisoformat(_status_of(self.pods[name])["state"]["running"]["startedAt"]).timestamp()
        return web.json_response({"idleSeconds": self.idle.get(name, time.time() - begin), "execs": 0})

    async def _reset(self, request: web.Request) -> web.Response:
        name = self._pod_at(request)
        if name is None:
            return refusal(503, "no daemon")
        self.resets.append(name)
        if self.restarts:
            asyncio.get_running_loop().call_soon(self.restart_container, name)
        return web.json_response({}, status=202)

    async def _other(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.calls.append((request.method, request.path_qs, body))
        said = request.headers.get("Authorization", "")
        return web.json_response({"pod": self._pod_at(request), "authorization": said, "body": body.decode()})


def _status_of(pod: Object) -> Object:
    statuses = pod["status"].get("containerStatuses")
    image = pod["spec"]["containers"][0]["image"]
    return dict(statuses[0]) if statuses else {"name": _SANDBOX, "image": image, "restartCount": 0, "state": {}}


def patched(item: Object, operations: list[Object]) -> bool:
    """Applies a JSON patch; False where a test of it fails."""
    for one in operations:
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:])
        target = item
        for part in path:
            target = target[part]
        if one["op"] == "test" and target.get(last) != one["value"]:
            return False
        if one["op"] == "add":
            target[last] = one["value"]
    return True


def copied(pod: Object) -> Object:
    return dict(json.loads(json.dumps(pod)))  # several times as fast as copy.deepcopy


def reply(body: Object, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


def refusal(code: int, message: str, reason: str = "") -> web.Response:
    body = {"kind": "Status", "code": code, "message": message} | ({"reason": reason} if reason else {})
    return web.json_response(body, status=code)
