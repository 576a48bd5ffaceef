"""A sandbox broker and its daemons for tests, in one server. Commands really run: in a folder of this machine, or where
`execute` sends them. The broker misbehaves on demand."""

import asyncio
import base64
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from gymtrain_api.sandboxes import DAEMON_INSTANCE_HEADER

TOKEN = "the run's token"


@dataclass
class Box:
    """One sandbox."""

    id: str
    request: dict[str, Any]
    state: str = "Running"
    polls_left: int = 0  # questions before it runs
    reason: str = ""
    message: str = ""
    instance: str = "first"  # of its daemon


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False


type Execute = Callable[[dict[str, Any]], Awaitable[Ended]]


async def in_folder(folder: Path, body: dict[str, Any]) -> Ended:
    """Runs the shell command of an exec request below `folder`."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        body["shell"],
        cwd=body.get("cwd") or folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **body.get("env", {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), body.get("timeoutSeconds"))
    except (TimeoutError, asyncio.CancelledError) as error:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(error, asyncio.CancelledError):  # the caller went away
            raise
        return Ended(-1, b"before\n", b"", timed_out=True)
    code = process.returncode or 0
    return Ended(code, stdout, stderr)


@dataclass
class FakeSandboxes:
    """Broker and daemons."""

    folder: Path
    execute: Execute | None = None
    boxes: dict[str, Box] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # "METHOD path", of the broker
    announced: list[list[dict[str, Any]]] = field(default_factory=list)
    execs: list[dict[str, Any]] = field(default_factory=list)
    executing: int = 0  # commands that run now
    polls: int = 0  # questions before a new sandbox runs
    answer_first: list[int] = field(default_factory=list)  # statuses of the next answers of the broker
    refuse_exec: list[tuple[int, str, str]] = field(default_factory=list)  # errors that the daemon answers first
    break_exec: bool = False  # drop the connection while a command runs
    cut_exec: bool = False  # end the answer before the command's end, as a reset does
    resetting: bool = False  # whether the daemons are about to end
    url: str = ""
    _runner: web.AppRunner | None = None

    @property
    def token_file(self) -> Path:
        """As the pod's Secret."""
        path = self.folder / "broker-token"
        path.write_text(f"{TOKEN}\n")
        return path

    @property
    def environment(self) -> dict[str, str]:
        """As the operator sets it."""
        return {"GYMTRAIN_BROKER_URL": self.url, "GYMTRAIN_BROKER_TOKEN_FILE": str(self.token_file)}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition holds."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - tests look at lists
                await asyncio.sleep(0.002)

    def open(self) -> list[Box]:
        """Sandboxes that nobody closed."""
        return [box for box in self.boxes.values() if box.state not in ("Closed", "Failed")]

    async def __aenter__(self) -> "FakeSandboxes":
        app = web.Application(middlewares=[self._authorised], client_max_size=1 << 26)
        app.add_routes(
            [
                web.post("/v1/sandboxes", self._create),
                web.get("/v1/sandboxes/{id}", self._get),
                web.delete("/v1/sandboxes/{id}", self._close),
                web.post("/v1/announce", self._announce),
                web.post("/box/{id}/v1/exec", self._exec),
                web.put("/box/{id}/v1/file", self._put),
                web.get("/box/{id}/v1/file", self._read),
                web.post("/v1/sandboxes/{id}/daemon/v1/exec", self._exec),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/box/"):
            self.requests.append(f"{request.method} {request.path}")
            if self.answer_first:
                return _error(self.answer_first.pop(0), "busy", "come again", {"Retry-After": "0.01"})
        token = TOKEN
        if request.path.startswith("/box/"):
            box = self.boxes.get(request.match_info["id"])
            token = f"token of {request.match_info['id']}"
            if box is None or box.state != "Running":
                return _error(401, "unauthorised", "this is another sandbox now")
            if request.headers.get(DAEMON_INSTANCE_HEADER, box.instance) != box.instance:
                return _error(410, "other_instance", "this is a new one in its place")
            if self.resetting:
                return _error(503, "resetting", "the sandbox is being reset")
        if request.headers.get("Authorization") != f"Bearer {token}":
            return _error(401, "unauthorised", "wrong token")
        response: web.StreamResponse = await handler(request)
        return response

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        box = next((box for box in self.boxes.values() if box.request.get("key") == body.get("key")), None)
        if box is None:
            box = Box(uuid.uuid4().hex[:10], body, "Queued" if self.polls else "Running", self.polls)
            self.boxes[box.id] = box
        return self._answer(box)

    async def _get(self, request: web.Request) -> web.Response:
        box = self.boxes.get(request.match_info["id"])
        if box is None:
            return _error(404, "not_found", "no such sandbox")
        if box.polls_left:
            box.polls_left -= 1
            box.state = "Starting" if box.polls_left else "Running"
        return self._answer(box)

    async def _close(self, request: web.Request) -> web.Response:
        if box := self.boxes.get(request.match_info["id"]):
            box.state = "Closed"
        return web.Response(status=204)

    async def _announce(self, request: web.Request) -> web.Response:
        self.announced.append((await request.json())["tasks"])
        return web.Response(status=204)

    def _answer(self, box: Box) -> web.Response:
        body: dict[str, Any] = {
            "id": box.id,
            "state": box.state,
            "reason": box.reason,
            "message": box.message,
            "podName": "run-sb-x",
        }
        body |= {name: box.request.get(name) for name in ("image", "task", "env", "workdir", "user")}
        if box.state == "Running":
            body |= {"url": f"{self.url}/box/{box.id}", "token": f"token of {box.id}", "instance": box.instance}
        return web.json_response(body, status=201 if box.state == "Running" else 202)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.execs.append(body)
        if self.refuse_exec:
            return _error(*self.refuse_exec.pop(0))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(_line({"t": "start", "pid": 7}))
        if self.break_exec:
            assert request.transport is not None
            request.transport.abort()
            return response
        if self.cut_exec:
            return response
        self.executing += 1
        try:
            ended = await (self.execute(body) if self.execute else in_folder(self.folder, body))
        finally:
            self.executing -= 1
        for kind, data in (("out", ended.stdout), ("err", ended.stderr)):
            for start in range(0, len(data), 100_000):
                await response.write(_line({"t": kind, "d": base64.b64encode(data[start : start + 100_000]).decode()}))
        name = signal.Signals(-ended.code).name if ended.code < 0 and not ended.timed_out else None
        await response.write(_line({"t": "beat"}))
        await response.write(
            _line(
                {
                    "t": "exit",
                    "code": ended.code,
                    "signal": name and name.removeprefix("SIG"),
                    "timedOut": ended.timed_out,
                    "outTruncated": 0,
                    "errTruncated": 0,
                    "seconds": 0.1,
                }
            )
        )
        return response

    async def _put(self, request: web.Request) -> web.Response:
        path, mode, data = Path(request.query["path"]), int(request.query["mode"], 8), await request.read()
        return await asyncio.to_thread(_write, path, mode, data)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        path = Path(request.query["path"])
        if not await asyncio.to_thread(path.is_file):
            return _error(404, "not_found", f"there is no file {path}")
        return web.FileResponse(path)


def _write(path: Path, mode: int, data: bytes) -> web.Response:
    if not path.parent.is_dir():
        return _error(404, "not_found", f"there is no folder {path.parent}")
    path.write_bytes(data)
    path.chmod(mode)
    return web.Response(status=204)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status, headers=headers)
