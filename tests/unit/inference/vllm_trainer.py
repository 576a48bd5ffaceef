"""The trainer's half beside a real vLLM (tests/support/real_vllm.py)."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from gymtrain_trainer.weights import (
    HTTPFull,
    ParityCheck,
    ParityWatch,
    SyncSettings,
    WeightStore,
    WeightSync,
    model_logprobs,
    weight_routes,
)
from tests.support.fake_vllm import free_port, serving
from tests.support.real_vllm import Expected, Server


@dataclass
class Trainer:
    """The trainer's half: a model, its weights behind HTTP, weight sync."""

    model: Any
    store: WeightStore
    transfer: WeightSync
    expected: Expected
    url: str

    def sync(self) -> None:
        """As TRL does."""
        self.transfer.pause()
        self.transfer.send_weights(self.model.named_parameters())
        self.transfer.resume()
        if asked := self.transfer.to_compare():
            self.transfer.compare(self.expected.log_probs(asked))

    def change(self) -> None:
        """Other weights, far from the ones before."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)


@contextmanager
def syncing(server: Server, folder: Path, check: ParityCheck) -> Iterator[Trainer]:
    """A trainer with the model of `server`, before its first sync. `folder`: of its files."""
    model = AutoModelForCausalLM.from_pretrained(server.folder / "model", dtype=torch.float32)
    port = free_port()
    store = WeightStore(folder / "staged")
    settings = SyncSettings(
        run="demo",
        attempt=0,
        pods_host="127.0.0.1",
        weights_url=f"http://127.0.0.1:{port}/weights",
        timeout_seconds=120,
        pods_port=server.port,
        repair_seconds=0.5,
    )
    ready, end = threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.add_routes(weight_routes(store))
        async with serving(app, "127.0.0.1", port):
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    parity = ParityWatch(check, dtype="float32")
    transfer = WeightSync.over(settings, HTTPFull(store, dtype="float32"), parity=parity, store=store)
    try:
        transfer.init_weight_transfer()
        yield Trainer(model, store, transfer, Expected(check, model_logprobs(model)), f"http://127.0.0.1:{port}")
    finally:
        transfer.destroy()
        end.set()
        thread.join()
