"""Staged weights behind HTTP, and vLLM pods that fetch them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from blake3 import blake3

from gymtrain_api.manifest import WeightPart
from gymtrain_trainer.weights import HTTPFull, SyncSettings, WeightStore, weight_routes
from gymtrain_trainer.weights.pods.client import PublishedVersion
from gymtrain_trainer.weights.pods.fleet import Fleet
from gymtrain_trainer.weights.store.weight_store import Draft
from tests.support.fake_vllm import FakeVLLM, free_port, name_addresses, serving

NAME = "demo-inference-pods"


def publish(draft: Draft, content: bytes, name: str = "00000.safetensors") -> None:
    """Writes and announces a file of one part."""
    (draft.folder / name).write_bytes(content)
    size = len(content)
    draft.manifest.add(WeightPart(name=name, size=size, offset=0, bytes=size, blake3=blake3(content).hexdigest()))


@dataclass
class Cluster:
    """vLLM pods by address, and the trainer's half."""

    settings: SyncSettings
    store: WeightStore
    fleet: Fleet
    folder: Path
    addresses: list[str]  # what DNS says; tests may change it
    stack: AsyncExitStack
    pods: dict[str, FakeVLLM] = field(default_factory=dict)

    async def start_pod(self, address: str, *, listed: bool = True) -> FakeVLLM:
        """A pod that listens."""
        pod = FakeVLLM(self.folder / address)
        self.pods[address] = pod
        await self.stack.enter_async_context(serving(pod.app(), address, self.settings.pods_port))
        if listed and address not in self.addresses:
            self.addresses.append(address)
        return pod

    def stage(self, number: int, content: bytes = b"weights") -> PublishedVersion:
        """Publishes a version of one file."""
        label = self.settings.version(number)
        draft = self.store.begin(number, label, len(content))
        publish(draft, content)
        draft.manifest.end()
        return PublishedVersion(label, self.settings.manifest_url(number))


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """No pods yet."""
    monkeypatch.setattr("gymtrain_trainer.weights.pods.fleet._AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("gymtrain_trainer.weights.pods.client._ASK_SECONDS", 60.0)  # pods are of this busy process
    addresses: list[str] = []
    name_addresses(monkeypatch, NAME, addresses)
    trainer_port = free_port()
    settings = SyncSettings(
        run="demo",
        attempt=1,
        pods_host=NAME,
        weights_url=f"http://127.0.0.1:{trainer_port}/weights",
        timeout_seconds=60.0,
        pods_port=free_port(),
        repair_seconds=0.05,
    )
    store = WeightStore(tmp_path / "staged")
    app = web.Application()
    app.add_routes(weight_routes(store))
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        await stack.enter_async_context(serving(app, "127.0.0.1", trainer_port))
        yield Cluster(settings, store, Fleet(settings, session, HTTPFull(store)), tmp_path, addresses, stack)


@pytest.fixture
def read_file() -> Callable[[Path], bytes]:
    """What a pod fetched."""

    def read(folder: Path) -> bytes:
        return next(folder.rglob("*.safetensors")).read_bytes()

    return read
