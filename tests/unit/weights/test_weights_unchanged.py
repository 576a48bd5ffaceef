"""Tensors that don't change are not sent again, and every pod computes with the right ones all the same."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from gymtrain_api.manifest import WeightPart  # noqa: E402
from gymtrain_trainer.weights import HTTPFull, WeightStore, WeightSync, WeightSyncError  # noqa: E402
from gymtrain_trainer.weights.store.staging import stage  # noqa: E402
from gymtrain_vllm.download import Download  # noqa: E402
from tests.unit.weights.weights_waits import on_main_thread, until  # noqa: E402

pytestmark = pytest.mark.torch

HEADERS = 5000  # bytes of the files' headers, at most
LAYERS = 4
NAMES = ["model.embed_tokens.weight"] + [
    f"model.layers.{number}.{rest}.weight"
    for number in range(LAYERS)
    for rest in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "input_layernorm")
]
SIZE = 4 * 600  # bytes of each


class Model:
    """Tensors by name, and which of them change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tensors = {name: torch.randn(30, 20) for name in NAMES}

    def change(self, *words: str) -> None:
        for name, tensor in self.tensors.items():
            if any(word in name for word in words):
                tensor.data += 1.0  # not seen by torch's counter of writes, as an adapter is merged

    def stream(self) -> Any:
        return iter(self.tensors.items())


class Run:
    """Syncs of a model to the pods of a cluster, and what they fetched and loaded."""

    def __init__(self, cluster: Any, monkeypatch: pytest.MonkeyPatch, dtype: str | None = None) -> None:
        small = partial(stage, shard_bytes=3 * SIZE)
        monkeypatch.setattr("gymtrain_trainer.weights.transports.http_full.stage", small)
        self.cluster, self.model, self.dtype = cluster, Model(), dtype
        self.transfer = WeightSync.over(cluster.settings, HTTPFull(cluster.store, dtype=dtype))
        self.fetched = 0
        part_of = Download.part

        def counted(download: Download, part: WeightPart, file: int, memory: memoryview | None) -> None:
            self.fetched += part.bytes
            part_of(download, part, file, memory)

        monkeypatch.setattr(Download, "part", counted)

    async def sync(self, *words: str) -> int:
        """Bytes that the pods fetched after tensors with one of the words in their names had changed."""
        self.model.change(*words)
        self.fetched = 0
        await on_main_thread(lambda: self.transfer.send_weights(self.model.stream()))
        return self.fetched

    async def end(self) -> None:
        await asyncio.to_thread(self.transfer.destroy)


def loading(pod: Any) -> list[dict[str, Any]]:
    """From now on: the tensors of each version that the pod loads."""
    loaded: list[dict[str, Any]] = []
    files = pod.ahead.files

    def load(update: Any) -> list[Path]:
        found: list[Path] = files(update)
        tensors: dict[str, Any] = {}
        for file in found:
            own = load_file(file)
            assert not own.keys() & tensors.keys()
            tensors |= own
        loaded.append(tensors)
        return found

    pod.ahead.files = load
    return loaded


def assert_loaded(loaded: list[dict[str, Any]], model: Model, dtype: str | None = None) -> None:
    assert loaded[-1].keys() == model.tensors.keys()
    for name, tensor in model.tensors.items():
        expected = tensor.to(getattr(torch, dtype)) if dtype else tensor
        assert torch.equal(loaded[-1][name], expected), name


@pytest.fixture
async def run(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    found = Run(cluster, monkeypatch)
    yield found
    await found.end()


async def test_only_what_changes_is_fetched_once_the_rest_has_settled(run: Run) -> None:
    loaded = loading(await run.cluster.start_pod("127.0.0.1"))
    whole, part = len(NAMES) * SIZE, len(NAMES) // LAYERS * SIZE
    sizes = []
    for _ in range(5):
        sizes.append(await run.sync("layers.2."))
        assert_loaded(loaded, run.model)
    assert all(whole <= size < whole + HEADERS for size in sizes[:3])  # nobody knows yet, it is seen, it settles
    assert all(part <= size < part + HEADERS for size in sizes[3:])
    assert run.transfer.stats.last_bytes == sizes[-1]


async def test_a_model_that_does_not_change_is_not_fetched(run: Run) -> None:
    loaded = loading(await run.cluster.start_pod("127.0.0.1"))
    sizes = [await run.sync() for _ in range(4)]
    assert sizes[-1] == 0
    assert_loaded(loaded, run.model)


async def test_a_model_of_which_all_changes_is_fetched_whole(run: Run) -> None:
    await run.cluster.start_pod("127.0.0.1")
    sizes = [await run.sync("model") for _ in range(4)]
    assert all(size >= len(NAMES) * SIZE for size in sizes)
    assert not any(part.kept for part in parts_of(run.cluster.store, 4))


def parts_of(store: WeightStore, number: int) -> list[WeightPart]:
    manifest = store.manifest(str(number))
    assert manifest is not None
    return [WeightPart.model_validate_json(line) for line in manifest._lines[:-1]]


async def test_what_changes_after_all_is_fetched_and_its_file_falls_apart(run: Run) -> None:
    loaded = loading(await run.cluster.start_pod("127.0.0.1"))
    for _ in range(4):
        await run.sync("layers.2.")
    for words in (("layers.2.", "layers.0.mlp"), ("layers.2.",), ("layers.2.", "layers.0.mlp"), ("layers.2.",)):
        size = await run.sync(*words)
        assert_loaded(loaded, run.model)
    assert size < (len(NAMES) // LAYERS + 2) * SIZE  # the one that is fickle is fetched each time


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
async def test_whatever_changes_every_pod_holds_every_tensor(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, seed: int, dtype: str | None
) -> None:
    chance = random.Random(seed)
    run = Run(cluster, monkeypatch, dtype)
    loads = [loading(await cluster.start_pod(f"127.0.0.{number}")) for number in (1, 2)]
    for _ in range(12):
        await run.sync(*chance.choices(NAMES, k=chance.choice([0, 1, 2, len(NAMES)])))
        for loaded in loads:
            assert_loaded(loaded, run.model, dtype)
    await run.end()


async def test_a_pod_that_is_new_or_was_restarted_fetches_everything(run: Run) -> None:
    await run.cluster.start_pod("127.0.0.1")
    for _ in range(5):
        await run.sync("layers.2.")
    run.fetched = 0
    added = await run.cluster.start_pod("127.0.0.2")
    loaded = loading(added)
    await until(lambda: added.version == "demo:1:5")
    assert run.fetched >= len(NAMES) * SIZE
    assert_loaded(loaded, run.model)


async def test_a_pod_that_missed_versions_catches_up(run: Run) -> None:
    pods = [await run.cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    loaded = loading(pods[1])
    for _ in range(4):
        await run.sync("layers.2.")
    run.cluster.addresses.remove("127.0.0.2")
    for words in (("layers.0.mlp", "layers.2."), ("layers.2.",), ("layers.2.",)):
        await run.sync(*words)
    run.cluster.addresses.append("127.0.0.2")
    await run.sync("layers.2.")
    assert_loaded(loaded, run.model)


async def test_after_a_sync_that_failed_nothing_is_taken_for_sent(run: Run) -> None:
    pod = await run.cluster.start_pod("127.0.0.1")
    loaded = loading(pod)
    for _ in range(4):
        await run.sync("layers.2.")
    pod.fail_updates = 3
    with pytest.raises(WeightSyncError):
        await run.sync("layers.0.mlp")
    await run.sync()
    assert_loaded(loaded, run.model)


async def test_a_new_attempt_starts_from_nothing(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading(await cluster.start_pod("127.0.0.1"))
    first = Run(cluster, monkeypatch)
    for _ in range(4):
        await first.sync("layers.2.")
    await first.end()
    cluster.settings = dataclasses.replace(cluster.settings, attempt=2)
    second = Run(cluster, monkeypatch)  # the store was emptied, and numbers begin again
    second.model.change("model")
    for _ in range(4):
        await second.sync("layers.1.")
        assert_loaded(loaded, second.model)
    await second.end()


async def test_versions_share_the_bytes_of_what_is_settled(run: Run, cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    for _ in range(5):
        await run.sync("layers.2.")
    folders = [cluster.folder / "staged" / str(number) for number in (4, 5)]
    fourth, fifth = ({(path.name, path.stat().st_ino) for path in folder.glob("*.safetensors")} for folder in folders)
    shared = fourth & fifth
    assert len(shared) >= 4
    assert all(name.startswith("s") for name, _ in shared)
