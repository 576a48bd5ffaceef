"""What `dev.gpu.transports` measures: TRL's own transfer, and each of our transports, as TRL drives them."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dev.gpu import small_model
from dev.gpu.vllm_server import free_port

if TYPE_CHECKING:
    from gymtrain_trainer.weights import WeightStore

_PROMPTS = [[5, 6, 7, 8], list(range(100, 160)), list(range(3000, 3200))]
_LOADED = re.compile(r"weights bench:1:\d+: waited ([\d.]+) s for the last files, loaded in ([\d.]+) s")
_TIMEOUT_SECONDS = 120.0


@dataclass
class Subject:
    """A transport under measurement."""

    name: str
    sync: Callable[[], dict[str, float]]  # seconds by phase
    change: Callable[[], None]  # of the weights
    asked: Callable[[], str | None] = lambda: "policy"  # model to sample from
    computing: Callable[[], AbstractContextManager[None]] = nullcontext  # around the model's own log-probabilities


type Kind = Callable[[int, Any], AbstractContextManager[Subject]]  # for a port and a model


@contextmanager
def trl(port: int, model: Any) -> Iterator[Subject]:
    """TRL's own NCCL transfer."""
    from accelerate import PartialState
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    PartialState()
    named = list(model.named_parameters())
    info = {
        "names": [name for name, _ in named],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        "shapes": [list(tensor.shape) for _, tensor in named],
    }
    transfer = WeightTransferClient(VLLMClient(f"http://127.0.0.1:{port}"), info, int(_TIMEOUT_SECONDS))
    transfer.init_weight_transfer()
    try:
        yield Subject("trl_nccl", _protocol(transfer, model), lambda: small_model.change(model))
    finally:
        transfer.destroy()


def nccl(name: str = "nccl", host: str = "127.0.0.1", message_bytes: int | None = None) -> Kind:
    """Our NCCL, which pauses pods as TRL's does (maxStaleness 0), messages as runs have them, or of another size."""

    @contextmanager
    def kind(port: int, model: Any) -> Iterator[Subject]:
        from gymtrain_trainer.weights import NCCL, WeightSync
        from gymtrain_trainer.weights.transports.nccl.packing import MESSAGE_BYTES

        size = message_bytes or MESSAGE_BYTES
        transport = NCCL(lambda: iter(model.named_parameters()), dtype="bfloat16", message_bytes=size)
        transfer = WeightSync.over(_settings(port, host=host), transport)
        with _ready(transfer):
            yield Subject(name, _protocol(transfer, model), lambda: small_model.change(model))

    return kind


def serve_weights(store: "WeightStore") -> int:
    """The port of an HTTP server of this process, as the trainer's, until the process ends."""
    from aiohttp import web

    from gymtrain_trainer.serve import HttpServer, sending_threads
    from gymtrain_trainer.weights import weight_routes

    def app() -> web.Application:
        made = web.Application()
        made.add_routes(weight_routes(store))
        return made

    port = free_port()
    HttpServer(app, port, sending_threads()).start()
    return port


def http(work: Path, name: str = "httpfull", host: str = "127.0.0.1") -> Kind:
    """HTTPFull, with the trainer's HTTP server in this process, as in the trainer's."""

    @contextmanager
    def kind(port: int, model: Any) -> Iterator[Subject]:
        from gymtrain_trainer.weights import HTTPFull, WeightStore, WeightSync

        store = WeightStore(work)
        transfer = WeightSync.over(_settings(port, serve_weights(store), host), HTTPFull(store, dtype="bfloat16"))

        def sync() -> dict[str, float]:
            phases = _protocol(transfer, model)()
            stats = transfer.stats
            found = {
                "stage": stats.last_stage_seconds,
                "pull": stats.last_fetch_seconds,
                "paused": stats.last_pause_seconds,
            }
            return {**found, "other": phases["send"] - sum(found.values())}

        with _ready(transfer):
            yield Subject(name, sync, lambda: small_model.change(model))

    return kind


def loads(log: Path) -> list[dict[str, float]]:
    """What the plugin in vLLM said of each load, within a pause: seconds of waiting for files, and of loading them."""
    text = log.read_text(errors="replace")
    return [{"wait": float(wait), "load": float(load)} for wait, load in _LOADED.findall(text)]


def lora(work: Path, targets: Sequence[str]) -> Kind:
    """LoRAFilesystem, with adapters of rank 16."""

    @contextmanager
    def kind(port: int, model: Any) -> Iterator[Subject]:
        from gymtrain_trainer.weights import LoRAFilesystem, WeightSync

        config = small_model.adapter_config(work / "model", targets)
        transport = LoRAFilesystem(work / "adapters", max_staleness=2, adapter_config=config)
        transfer = WeightSync.over(_settings(port), transport)
        adapter: dict[str, Any] = {}

        def sync() -> dict[str, float]:
            started = time.monotonic()
            transfer.send_weights(iter(adapter.items()))
            sent = time.monotonic() - started
            return {"stage": transfer.stats.last_stage_seconds, "load": sent - transfer.stats.last_stage_seconds}

        with _ready(transfer):
            yield Subject(
                "lora",
                sync,
                lambda: adapter.update(small_model.make_adapter(model, targets)),
                lambda: transfer.current_version,
                lambda: small_model.merged(model, adapter, targets),
            )

    return kind


def difference(address: str, port: int, model: Any, subject: Subject) -> float:
    """Mean |difference| of the log-probabilities of tokens that vLLM samples, between vLLM and this process."""
    import aiohttp

    from gymtrain_trainer.weights.parity.check import ParityCheck, completions_of, judge, model_logprobs
    from gymtrain_trainer.weights.pods.client import PodClient, VllmPod

    check = ParityCheck(_PROMPTS, threshold=1e9)

    async def ask() -> Any:
        async with aiohttp.ClientSession() as session:
            client = PodClient(session, VllmPod(f"http://{address}:{port}"))
            return await completions_of(client, check, _TIMEOUT_SECONDS, subject.asked() or "policy")

    sampled = asyncio.run(ask())
    asked = [one.completion for one in sampled]
    with subject.computing():
        computed = dict(zip(asked, model_logprobs(model)(asked), strict=True))
    return round(judge("vLLM", sampled, computed, check, "bfloat16"), 5)


def wait_for_gpu() -> None:
    """Until what was queued is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _ready(transfer: Any) -> Iterator[None]:
    try:
        transfer.init_weight_transfer()
        yield
    finally:
        transfer.destroy()


def _settings(port: int, own_port: int = 0, host: str = "127.0.0.1") -> Any:
    from gymtrain_trainer.weights import SyncSettings

    return SyncSettings(
        run="bench",
        attempt=1,
        pods_host=host,
        weights_url=f"http://127.0.0.1:{own_port}/weights",
        timeout_seconds=_TIMEOUT_SECONDS,
        pods_port=port,
    )


def _protocol(transfer: Any, model: Any) -> Callable[[], dict[str, float]]:
    """One sync as TRL drives it."""

    def sync() -> dict[str, float]:
        started = time.monotonic()
        transfer.pause()
        paused = time.monotonic()
        transfer.send_weights(iter([(name, tensor.detach()) for name, tensor in model.named_parameters()]))
        sent = time.monotonic()
        transfer.resume()
        return {"pause": paused - started, "send": sent - paused, "resume": time.monotonic() - sent}

    return sync
