"""Weight versions of calls whose vLLM doesn't say what sampled them: what the pod held before is not all there is."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gymtrain_api.ledger import token_digest
from tests.unit.gateway.conftest import SETTINGS, Bench, Start
from tests.unit.gateway.fake_vllm import FakeVLLM

HEADER = "x-gymtrain-weight-version"
COMPLETION = {"prompt": [1, 2], "return_token_ids": True}


class Trainer:
    """What it says that the pods hold."""

    def __init__(self) -> None:
        self.held: dict[str, Any] | None = None  # None: it answers with an error
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        if self.held is None:
            return web.Response(status=500)
        return web.json_response(self.held)

    def says(self, pod: FakeVLLM, version: str) -> None:
        self.held = {"version": version, "pods": {pod.url: version}}


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer]:
    found = Trainer()
    app = web.Application()
    app.router.add_get("/weights/held", found.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        found.url = f"http://127.0.0.1:{server.port}"
        yield found


async def mute_pod(start: Start, trainer: Trainer) -> tuple[Bench, FakeVLLM]:
    """A pod that can't say its version, with calls that hang."""
    pod = FakeVLLM(label=None)
    await pod.start()
    trainer.says(pod, "run:1:4")
    bench = await start(pod, trainer=trainer.url)
    pod.hang.clear()
    return bench, pod


async def versions(bench: Bench, call: "asyncio.Task[tuple[int, Any, dict[str, str]]]") -> str:
    """Those of the answer's header, which the ledger has too."""
    status, document, headers = await call
    assert status == 200, document
    choice = document["choices"][0]
    digest = token_digest(document.get("prompt_token_ids") or choice["prompt_token_ids"], choice["token_ids"])
    entry = (await bench.post("/gymtrain/ledger", {"digests": [digest]}))[1]["entries"][digest]
    assert entry["versions"] == headers[HEADER].split(",")
    return headers[HEADER]


def asked(bench: Bench, path: str) -> "asyncio.Task[tuple[int, Any, dict[str, str]]]":
    chat = {"model": "policy", "messages": [{"role": "user", "content": "q"}], "return_token_ids": True}
    return asyncio.create_task(bench.post(path, COMPLETION if path == "/v1/completions" else chat))


PATHS = {"/v1/chat/completions": "generate", "/v1/completions": "completions"}


@pytest.mark.parametrize("path", list(PATHS))
async def test_the_trainer_names_the_versions_before_and_after(start: Start, trainer: Trainer, path: str) -> None:
    bench, pod = await mute_pod(start, trainer)
    call = asked(bench, path)
    await bench.until(lambda: PATHS[path] in pod.calls)
    trainer.says(pod, "run:1:5")
    pod.hang.set()
    assert await versions(bench, call) == "run:1:4,run:1:5"


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize("trouble", ["silent", "other pods"])
async def test_a_trainer_that_does_not_say_what_the_pod_holds_leaves_the_version_unknown(
    start: Start, trainer: Trainer, path: str, trouble: str
) -> None:
    """Not even what it said shortly before counts: the pod may have got other weights since."""
    bench, pod = await mute_pod(start, trainer)
    call = asked(bench, path)
    await bench.until(lambda: PATHS[path] in pod.calls)
    trainer.held = None if trouble == "silent" else {"version": "run:1:4", "pods": {}}
    pod.hang.set()
    assert await versions(bench, call) == "run:1:4,unknown"


async def test_a_pod_that_no_longer_says_its_version_leaves_it_unknown(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    pod.hang.clear()
    call = asked(bench, "/v1/completions")
    await bench.until(lambda: "completions" in pod.calls)
    pod.label = None
    pod.hang.set()
    assert await versions(bench, call) == "run:1:1,unknown"


async def test_with_adapters_the_name_that_was_asked_for_is_the_version(start: Start) -> None:
    pod = FakeVLLM(label="default")
    pod.adapters = ["run:1:1"]
    bench = await start(pod, rules=replace(SETTINGS.rules, adapters=True))
    pod.hang.clear()
    call = asked(bench, "/v1/completions")
    await bench.until(lambda: "completions" in pod.calls)
    pod.adapters.append("run:1:2")
    await bench.until(lambda: bench.pods.admissions[pod.url].version == "run:1:2")
    pod.hang.set()
    assert await versions(bench, call) == "run:1:1"


async def test_where_lora_is_merged_into_the_weights_the_pod_is_asked(start: Start) -> None:
    """Transport Auto may come to that: no adapter is served then."""
    pod = FakeVLLM()
    bench = await start(pod, rules=replace(SETTINGS.rules, adapters=True))
    pod.hang.clear()
    call = asked(bench, "/v1/completions")
    await bench.until(lambda: "completions" in pod.calls)
    pod.label = "run:1:2"
    pod.hang.set()
    assert await versions(bench, call) == "run:1:1,run:1:2"


async def test_weights_that_never_change_need_no_question(start: Start) -> None:
    pod = FakeVLLM(label="default")
    bench = await start(pod, rules=replace(SETTINGS.rules, synced=False))
    pod.hang.clear()
    call = asked(bench, "/v1/completions")
    await bench.until(lambda: "completions" in pod.calls)
    bench.known.clear()
    await bench.until(lambda: not bench.pods.admissions)
    pod.hang.set()
    assert await versions(bench, call) == "default"
