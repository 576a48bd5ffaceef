"""A vLLM server without a model: the control routes with their states, and the plugin's own fetch behind them."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from aiohttp import web

from gymtrain_api.manifest import PullUpdate
from gymtrain_api.transports import LORA_ROUTES, NCCL_ROUTES, PULL_BACKEND
from gymtrain_vllm.errors import FetchError
from gymtrain_vllm.fetch import BackgroundFetch
from gymtrain_vllm.server_exit import ASKS_WORKERS


class FakeVLLM:
    """One server. Its attributes are its state, and switches for what goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = "default"
        self.paused = False
        self.active = False
        self.backend: str | None = PULL_BACKEND
        self.loaded: list[str] = []  # versions, in order
        self.loaded_while_paused: list[bool] = []
        self.begun: list[str] = []  # versions that it fetched ahead
        self.begun_while_paused: list[bool] = []
        self.ahead = BackgroundFetch(folder)
        self.resets = 0
        self.fail_updates = 0  # so many updates end in HTTP 500
        self.update_error = "something broke"
        self.knows_version = True  # False as in 0.25
        self.engine_died = False  # the server still answers, for some seconds
        self.refuses_completions = False
        self.logprob = -1.0  # of every sampled token
        self.calls: list[str] = []
        self.release = "0.32.0"
        self.joined: list[dict[str, Any]] = []  # groups, as the trainer described them
        self.announced: list[dict[str, Any]] = []  # tensors of updates by NCCL
        self.workers = 1
        self._given_up = WeakSet[asyncio.Transport]()  # vLLM's server closes a connection after an error, unannounced
        self._second_worker: deque[tuple[int, Any]] = deque()  # its answers that nobody read yet
        self.max_loras = 0  # 0: started without --enable-lora
        self.adapters: dict[str, str] = {}  # folder by name, in the order of loading

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", self._answer)])
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        assert request.transport is not None
        if request.transport in self._given_up:
            request.transport.abort()
            raise web.HTTPInternalServerError
        self.calls.append(path)
        body = await request.json() if request.can_read_body else {}
        method = getattr(self, "do" + path.replace("/", "_").replace(".", "_"), None)
        if method is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        answer: tuple[int, Any] = await method(body or {})
        if self.workers > 1 and path in ASKS_WORKERS:
            answer = self._of_all_workers(answer)
        if answer[0] >= 500:
            self._given_up.add(request.transport)
        return web.Response(status=answer[0], text=json.dumps(answer[1]), content_type="application/json")

    def _of_all_workers(self, answer: tuple[int, Any]) -> tuple[int, Any]:
        """As vLLM does it: an error of the first is the answer, and what the second says is read at the next call."""
        self._second_worker.append(answer)
        return answer if answer[0] >= 500 else self._second_worker.popleft()

    async def do_health(self, _: dict[str, Any]) -> tuple[int, Any]:
        return (503, "") if self.engine_died else (200, "")

    async def do_openapi_json(self, _: dict[str, Any]) -> tuple[int, Any]:
        paths = [*NCCL_ROUTES, *LORA_ROUTES]
        if self.knows_version:
            paths += ["/weight_info", "/shutdown_weight_transfer_engine"]
        return 200, {"info": {"version": "0.1.0"}, "paths": {path: {} for path in paths}}

    async def do_server_info(self, _: dict[str, Any]) -> tuple[int, Any]:
        transfer = {"backend": self.backend} if self.backend else None
        model = {"dtype": "torch.float32", "max_model_len": 1024}
        lora = {"max_lora_rank": 8, "max_loras": self.max_loras} if self.max_loras else None
        config = {"weight_transfer_config": transfer, "model_config": model, "lora_config": lora}
        return 200, {"vllm_config": config, "system_env": {"vllm_version": self.release}}

    async def do_weight_info(self, _: dict[str, Any]) -> tuple[int, Any]:
        return (200, {"weight_version": self.version}) if self.knows_version else (404, {})

    async def do_is_paused(self, _: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"is_paused": self.paused}

    async def do_pause(self, _: dict[str, Any]) -> tuple[int, Any]:
        self.paused = True
        return 200, {}

    async def do_resume(self, _: dict[str, Any]) -> tuple[int, Any]:
        self.paused = False
        return 200, {}

    async def do_get_world_size(self, _: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"world_size": self.workers}

    async def do_init_weight_transfer_engine(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.joined.append(body["init_info"])
        return 200, {}

    async def do_shutdown_weight_transfer_engine(self, _: dict[str, Any]) -> tuple[int, Any]:
        return (500, {"error": "update active"}) if self.active else (200, {})

    async def do_update_weight_version(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.version = body["new_version"]
        return 200, {}

    async def do_start_weight_update(self, _: dict[str, Any]) -> tuple[int, Any]:
        if self.active:
            return 500, {"error": "start_weight_update called while a weight update is already active"}
        self.active = True
        return 200, {}

    async def do_update_weights(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.active:
            return 500, {"error": "start_weight_update must be called before update_weights"}
        pulls = self.backend != "nccl"
        if self.fail_updates and not (pulls and body["update_info"].get("step") == "fetch"):
            self.fail_updates -= 1
            self.active = False
            return 500, {"error": self.update_error}
        if not pulls:
            self.announced.append(body["update_info"])
            return 200, {}
        update = PullUpdate.model_validate(body["update_info"])
        if update.step == "fetch":
            self.begun.append(update.version)
            self.begun_while_paused.append(self.paused)
            self.ahead.begin(update)
            return 200, {}
        try:
            await asyncio.to_thread(self.ahead.files, update)
        except FetchError as error:
            self.active = False
            return 500, {"error": str(error)}
        self.loaded.append(update.version)
        self.loaded_while_paused.append(self.paused)
        return 200, {}

    async def do_finish_weight_update(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.active:
            return 500, {"error": "finish_weight_update called without a matching start_weight_update"}
        self.active = False
        if body.get("weight_version"):
            self.version = body["weight_version"]
        return 200, {}

    async def do_reset_prefix_cache(self, _: dict[str, Any]) -> tuple[int, Any]:
        self.resets += 1
        return 200, {"success": True}

    async def do_v1_models(self, _: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"data": [{"id": name} for name in ("policy", *self.adapters)]}

    async def do_v1_load_lora_adapter(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.fail_updates:
            self.fail_updates -= 1
            return 500, {"error": self.update_error}
        if body["lora_name"] in self.adapters:
            return 400, {"error": f"The lora adapter '{body['lora_name']}' has already been loaded."}
        if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
            return 404, {"error": "No adapter found"}
        self.adapters[body["lora_name"]] = body["lora_path"]
        return 200, "Success"

    async def do_v1_unload_lora_adapter(self, body: dict[str, Any]) -> tuple[int, Any]:
        return (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, {})

    async def do_v1_completions(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.engine_died or self.refuses_completions:
            return (500 if self.engine_died else 400), {"error": "no completion"}
        count = body["max_tokens"]
        logprobs = {"token_logprobs": [self.logprob] * count}
        return 200, {"choices": [{"token_ids": [7] * count, "logprobs": logprobs}]}


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    """Serves `app` on an address of this machine."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield
    finally:
        await runner.cleanup()


def free_port() -> int:
    """A port that is free on all loopback addresses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def name_addresses(monkeypatch: pytest.MonkeyPatch, name: str, addresses: Iterable[str]) -> None:
    """Lets DNS answer `addresses` for `name`, as for a headless Service."""
    real = socket.getaddrinfo
    found = addresses

    def getaddrinfo(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != name:
            return real(host, port, *rest, **more)
        entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]
        if not entries:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return entries

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
