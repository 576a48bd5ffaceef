"""Weight transports side by side on a machine with two GPUs or more: vLLM on the first, this process on the second.

    PYTHONPATH=api:trainer:inference python3 -m dev.gpu.transports [--syncs 20] [--only nccl ...]

Needs torch, transformers, vLLM 0.25 or later and TRL 1.16. Ends in time with what it has, and prints one line of JSON:
seconds of a sync (pause to resume), medians over the syncs, for TRL's own NCCL transport and for each of ours, and the
difference of log-probabilities between vLLM and this process before (other weights) and after the last sync.
`pods` is HTTPFull to two servers on the first GPU, `tensor_parallel` HTTPFull to one server on both. NCCL takes one
rank on a GPU: `nccl_tensor_parallel` (one server, two workers) needs three GPUs, `nccl_pods` (three servers) four.
"""

import argparse
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # before torch looks
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
if not hasattr(os, "process_cpu_count"):  # Python 3.12
    setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010 - its type knows 3.13 only

import torch

from benchmarks.shapes import LLAMA_06B, SMOLLM2_135M
from dev.gpu import small_model
from dev.gpu.vllm_server import free_port, serving

_NCCL = '--weight-transfer-config={"backend":"nccl"}'
_SEVERAL = ("--tensor-parallel-size=2", "--middleware=gymtrain_vllm.server_exit.EndsOutOfStep")
_PODS_HOST = "pods"
_PROMPTS = [[5, 6, 7, 8], list(range(100, 160)), list(range(3000, 3200))]
_RESULTS: dict[str, Any] = {}
_SHAPES = {"0.1": SMOLLM2_135M, "0.6": LLAMA_06B}  # billions of parameters


def main() -> int:
    """Measures each kind; one that fails is reported with its error, and the others go on."""
    kinds = {
        "nccl": _nccl,
        "nccl_pods": _nccl_pods,
        "nccl_tensor_parallel": _nccl_tensor_parallel,
        "httpfull": _http,
        "lora": _lora,
        "pods": _pods,
        "tensor_parallel": _tensor_parallel,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--syncs", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=kinds, default=["nccl", "httpfull", "lora"])
    parser.add_argument("--size", choices=_SHAPES, default="0.1", help="of the model; tensor parallelism needs 0.6")
    parser.add_argument("--seconds", type=float, default=460.0, help="the most that it takes")
    options = parser.parse_args()
    stop = threading.Timer(options.seconds, _out_of_time, [options.seconds])
    stop.daemon = True
    stop.start()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        work = Path(folder)
        model = small_model.make_model(work / "model", _SHAPES[options.size])
        _RESULTS["model_bytes"] = sum(p.nbytes for p in model.parameters())
        _RESULTS["gpu"], _RESULTS["syncs"] = torch.cuda.get_device_name(), options.syncs
        for name in options.only:
            began = time.monotonic()
            try:
                kinds[name](work, model, options.syncs)
            except Exception as error:
                _RESULTS[f"{name}_error"] = f"{type(error).__name__}: {error}"[-1500:]
                _RESULTS[f"{name}_log"] = "\n".join(map(_tail, work.glob(f"{name}*.log")))
            _RESULTS[f"{name}_phase_seconds"] = round(time.monotonic() - began, 1)
    for found in _RESULTS.values():
        if isinstance(found, dict):
            found.pop("phases", None)
    print(json.dumps(_RESULTS), flush=True)
    return 0


def _nccl(work: Path, model: Any, syncs: int) -> None:
    """TRL's transport and ours take turns: each in two halves, so that neither gains from a warm server."""
    with serving(work / "model", work / "nccl.log", _NCCL) as port:
        ours = _measured(_our_nccl(), port, model)
        theirs = _measured(_trl, port, model)
        for kind in (theirs, ours, theirs, ours):
            kind(syncs // 2)


def _nccl_pods(work: Path, model: Any, syncs: int) -> None:
    """A server on each GPU that this process leaves."""
    port, pods = free_port(), {"127.0.0.1": "0", "127.0.0.2": "2", "127.0.0.3": "3"}
    with ExitStack() as servers:
        servers.enter_context(_name(_PODS_HOST, list(pods)))
        for address, gpu in pods.items():
            log = work / f"nccl_pods-{address}.log"
            server = serving(work / "model", log, _NCCL, host=address, port=port, CUDA_VISIBLE_DEVICES=gpu)
            servers.enter_context(server)
        _measured(_our_nccl("nccl_pods", _PODS_HOST), port, model, list(pods))(syncs)


def _nccl_tensor_parallel(work: Path, model: Any, syncs: int) -> None:
    log = work / "nccl_tensor_parallel.log"
    arguments = (_NCCL, *_SEVERAL)
    with serving(work / "model", log, *arguments, CUDA_VISIBLE_DEVICES="0,2") as port:
        _measured(_our_nccl("nccl_tensor_parallel"), port, model)(syncs)


def _http(work: Path, model: Any, syncs: int) -> None:
    with serving(work / "model", work / "httpfull.log", *_pull(), "--load-format=dummy") as port:
        _measured(_our_http(work / "httpfull"), port, model)(syncs)
    log = (work / "httpfull.log").read_text()
    found = re.findall(r"waited ([0-9.]+) s for the last files, loaded in ([0-9.]+) s", log)
    for name, seconds in zip(("wait", "load"), zip(*found, strict=True), strict=False):
        _RESULTS["httpfull"][f"median_{name}"] = statistics.median(map(float, seconds))


def _pods(work: Path, model: Any, syncs: int) -> None:
    """Servers behind one name, as the replicas of a run are; both answer for their weights."""
    port, addresses = free_port(), ("127.0.0.1", "127.0.0.2")
    with ExitStack() as servers:
        servers.enter_context(_name(_PODS_HOST, addresses))
        for address in addresses:
            log = work / f"pods-{address}.log"
            servers.enter_context(serving(work / "model", log, *_pull(), host=address, port=port, memory=0.25))
        _measured(_our_http(work / "pods", "pods", _PODS_HOST), port, model, addresses)(syncs)


def _tensor_parallel(work: Path, model: Any, syncs: int) -> None:
    log = work / "tensor_parallel.log"
    arguments = (*_pull(), *_SEVERAL)
    with serving(work / "model", log, *arguments, memory=0.25, CUDA_VISIBLE_DEVICES="0,1") as port:
        _measured(_our_http(work / "tensor_parallel", "tensor_parallel"), port, model)(syncs)


def _lora(work: Path, model: Any, syncs: int) -> None:
    from transformers import AutoModelForCausalLM

    arguments = ("--enable-lora", "--max-loras=4", "--max-lora-rank=16")
    with serving(work / "model", work / "lora.log", *arguments, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1") as port:
        base = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.bfloat16).cuda().eval()
        _measured(_our_lora(work), port, base)(syncs)


def _pull() -> tuple[str, ...]:
    from gymtrain_api.transports import PULL_BACKEND

    return (f'--weight-transfer-config={{"backend":"{PULL_BACKEND}"}}',)


@contextmanager
def _name(host: str, addresses: Sequence[str]) -> Iterator[None]:
    """A name that this process finds all addresses behind, as a headless Service is for a trainer."""
    real = socket.getaddrinfo

    def found(asked: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if asked != host:
            return real(asked, port, *arguments, **options)
        return [entry for address in addresses for entry in real(address, port, *arguments, **options)]

    with mock.patch.object(socket, "getaddrinfo", found):
        yield


@dataclass
class _Subject:
    """A transport under measurement."""

    name: str
    sync: Callable[[], dict[str, float]]  # seconds by phase
    change: Callable[[], None]  # of the weights
    asked: Callable[[], str | None] = lambda: "policy"  # model to sample from
    computing: Callable[[], AbstractContextManager[None]] = nullcontext  # around the model's own log-probabilities


type Kind = Callable[[int, Any], AbstractContextManager[_Subject]]  # for a port and a model


def _measured(kind: Kind, port: int, model: Any, addresses: Sequence[str] = ("127.0.0.1",)) -> Callable[[int], None]:
    def run(syncs: int) -> None:
        with kind(port, model) as subject:
            found = _RESULTS.setdefault(subject.name, {"seconds": [], "phases": []})
            for number in range(syncs + 1):
                subject.change()
                torch.cuda.synchronize()
                if number == syncs:
                    found["parity_before"] = [_difference(address, port, model, subject) for address in addresses]
                started = time.monotonic()
                phases = subject.sync()
                if number:  # the first one sets things up
                    found["seconds"].append(round(time.monotonic() - started, 4))
                    found["phases"].append(phases)
            found["parity"] = [_difference(address, port, model, subject) for address in addresses]
            found["median"] = round(statistics.median(found["seconds"]), 4)
            found["median_phases"] = {
                key: round(statistics.median(one[key] for one in found["phases"]), 4) for key in found["phases"][0]
            }
            found["fastest"], found["slowest"] = min(found["seconds"]), max(found["seconds"])
            found["count"] = len(found["seconds"])

    return run


@contextmanager
def _trl(port: int, model: Any) -> Iterator[_Subject]:
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
    transfer = WeightTransferClient(VLLMClient(f"http://127.0.0.1:{port}"), info, 60)
    transfer.init_weight_transfer()
    try:
        yield _Subject("trl_nccl", _protocol(transfer, model), lambda: small_model.change(model))
    finally:
        transfer.destroy()


def _our_nccl(name: str = "nccl", host: str = "127.0.0.1") -> Kind:
    @contextmanager
    def kind(port: int, model: Any) -> Iterator[_Subject]:
        from gymtrain_trainer.weights import NCCL, WeightSync

        transport = NCCL(lambda: iter(model.named_parameters()), dtype="bfloat16")
        transfer = WeightSync.over(_settings(port, host=host), transport)
        with _ready(transfer):
            yield _Subject(name, _protocol(transfer, model), lambda: small_model.change(model))

    return kind


def _our_http(work: Path, name: str = "httpfull", host: str = "127.0.0.1") -> Kind:
    @contextmanager
    def kind(port: int, model: Any) -> Iterator[_Subject]:
        from aiohttp import web

        from gymtrain_trainer.serve import HttpServer
        from gymtrain_trainer.weights import HTTPFull, WeightStore, WeightSync, weight_routes

        store, own_port = WeightStore(work), free_port()
        app = web.Application()
        app.add_routes(weight_routes(store))
        HttpServer(app, own_port).start()
        transfer = WeightSync.over(_settings(port, own_port, host), HTTPFull(store, dtype="bfloat16"))

        def sync() -> dict[str, float]:
            phases = _protocol(transfer, model)()
            stats = transfer.stats
            return {**phases, "stage": stats.last_stage_seconds, "pod_paused": stats.last_pause_seconds}

        with _ready(transfer):
            yield _Subject(name, sync, lambda: small_model.change(model))

    return kind


def _our_lora(work: Path) -> Kind:
    @contextmanager
    def kind(port: int, model: Any) -> Iterator[_Subject]:
        from gymtrain_trainer.weights import LoRAFilesystem, WeightSync

        config = small_model.adapter_config(work / "model")
        transport = LoRAFilesystem(work / "adapters", max_staleness=2, adapter_config=config)
        transfer = WeightSync.over(_settings(port), transport)
        adapter: dict[str, Any] = {}

        def change() -> None:
            adapter.update(small_model.make_adapter(model))

        def sync() -> dict[str, float]:
            started = time.monotonic()
            transfer.send_weights(iter(adapter.items()))
            return {"send": time.monotonic() - started, "stage": transfer.stats.last_stage_seconds}

        with _ready(transfer):
            yield _Subject(
                "lora_filesystem",
                sync,
                change,
                lambda: transfer.current_version,
                lambda: small_model.merged(model, adapter),
            )

    return kind


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
        timeout_seconds=60.0,
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


def _difference(address: str, port: int, model: Any, subject: _Subject) -> float:
    """Mean |difference| of the log-probabilities of tokens that vLLM samples."""
    import asyncio

    import aiohttp

    from gymtrain_trainer.weights.parity.check import ParityCheck, completions_of, judge, model_logprobs
    from gymtrain_trainer.weights.pods.client import PodClient, VllmPod

    check = ParityCheck(_PROMPTS, threshold=1e9)

    async def ask() -> Any:
        async with aiohttp.ClientSession() as session:
            return await completions_of(
                PodClient(session, VllmPod(f"http://{address}:{port}")), check, 60.0, subject.asked() or "policy"
            )

    sampled = asyncio.run(ask())
    asked = [one.completion for one in sampled]
    with subject.computing():
        computed = dict(zip(asked, model_logprobs(model)(asked), strict=True))
    return round(judge("vLLM", sampled, computed, check, "bfloat16"), 5)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2500:]


def _out_of_time(seconds: float) -> None:
    print(json.dumps({**_RESULTS, "error": f"not done in {seconds:.0f} s"}), flush=True)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries' threads have nothing to save
