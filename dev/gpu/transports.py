"""Weight transports side by side, with random weights that are made on the spot: vLLM on the first GPU, this process
on the second, or on the first one too (--one-gpu).

    export PYTHONPATH=api:tracing:trainer:inference
    python3 -m dev.gpu.transports --one-gpu --size 4 --only httpfull lora --syncs 5
    python3 -m dev.gpu.transports --size 14 --only nccl --syncs 10

Needs torch, transformers, vLLM 0.25 or later, blake3, aiohttp and, for nccl, TRL 1.16. Prints a line of JSON for each
transport, as soon as it is measured, and one with an "error" where it fails or doesn't come to its end in time:

  seconds         of a sync, pause to resume, after one that sets things up
  breakdown       medians of its phases. httpfull: stage (the trainer writes, pods fetch beside it), pull (until the
                  last pod has all), paused (the longest of the pods), and of that wait (for files) and load
  first, each     seconds of the syncs that set things up, and of each other one. httpfull: memory of old versions is
                  written into again from the third sync on
  parity_before   mean |difference| of log-probabilities between vLLM and this process, with other weights
  parity          the same, after the last sync
  ready_seconds   until vLLM was up; case_seconds: all of it

NCCL takes one rank on a GPU, so not --one-gpu. `nccl` is two lines: TRL's own transfer and ours, which take turns.
`pods` is HTTPFull to two servers on the first GPU, `tensor_parallel` HTTPFull to one server on both;
`nccl_tensor_parallel` (one server, two workers) needs three GPUs, `nccl_pods` (three servers) four.

Memory of the machine: httpfull keeps two versions of the weights and the pod's one, all in /dev/shm (--folder names
another place for the two).
"""

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ["CUDA_VISIBLE_DEVICES"] = "0" if "--one-gpu" in sys.argv else "1"  # before torch looks
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch

from dev.gpu import small_model, subjects
from dev.gpu.older_versions import allow_older_python
from dev.gpu.vllm_server import NO_MULTICAST, end_on_sigterm, free_port, serving

_NCCL = '--weight-transfer-config={"backend":"nccl"}'
_DUMMY = "--load-format=dummy"
_SEVERAL = ("--tensor-parallel-size=2", "--middleware=gymtrain_vllm.server_exit.EndsOutOfStep")
_PODS_HOST = "pods"
_FIRST_ERRORS = 20  # lines of a server's log
_END_SECONDS = 30.0  # for the servers to be ended


@dataclass
class _Bench:
    """What all cases share."""

    work: Path  # model and logs
    staged: Path
    size: str
    syncs: int
    memory: float  # share of the GPU for vLLM
    targets: Sequence[str]
    message_mib: Sequence[int]  # sizes of NCCL's messages to compare; none: that of runs
    model: Any = None
    case: str = ""
    began: float = 0.0
    ready: float = 0.0

    @property
    def folder(self) -> Path:
        return self.work / "model"

    def log(self, name: str = "") -> Path:
        return self.work / f"{self.case}{name}.log"

    def up(self) -> None:
        """The servers of this case are up."""
        self.ready = time.monotonic() - self.began

    def tell(self, found: dict[str, Any]) -> None:
        """Prints one line."""
        line = {"case": self.case, "size": self.size, "gpu": _gpu(), "bytes": _bytes(self.model), **found}
        line |= {"ready_seconds": round(self.ready, 1), "case_seconds": round(time.monotonic() - self.began, 1)}
        print(json.dumps(line), flush=True)


@dataclass
class _Measured:
    """Syncs of one transport; more can be added."""

    bench: _Bench
    kind: subjects.Kind
    port: int
    addresses: Sequence[str] = ("127.0.0.1",)

    def __post_init__(self) -> None:
        self.name = ""
        self.first: list[float] = []  # of those that set things up
        self.seconds: list[float] = []
        self.phases: list[dict[str, float]] = []
        self.parity: dict[str, list[float]] = {}

    def run(self, syncs: int) -> "_Measured":
        """So many, after one that sets things up."""
        model = self.bench.model
        with self.kind(self.port, model) as subject:
            self.name = subject.name
            for number in range(syncs + 1):
                subject.change()
                subjects.wait_for_gpu()
                if number == syncs:
                    self.parity["parity_before"] = self._differences(subject)
                started = time.monotonic()
                phases = subject.sync()
                (self.seconds if number else self.first).append(round(time.monotonic() - started, 4))
                if number:
                    self.phases.append(phases)
            self.parity["parity"] = self._differences(subject)
        return self

    def _differences(self, subject: subjects.Subject) -> list[float]:
        return [subjects.difference(address, self.port, self.bench.model, subject) for address in self.addresses]

    @property
    def median(self) -> float:
        return round(statistics.median(self.seconds), 4)

    def results(self, loads: Sequence[dict[str, float]] = ()) -> dict[str, Any]:
        """As printed; `loads`: what vLLM says of each, those that set things up included."""
        phases = [{**one, **load} for one, load in zip(self.phases, loads or [{}] * len(self.phases), strict=True)]
        breakdown = {key: round(statistics.median(one[key] for one in phases), 4) for key in phases[0]}
        return {
            "transport": self.name,
            "syncs": len(self.seconds),
            "seconds": {"median": self.median, "fastest": min(self.seconds), "slowest": max(self.seconds)},
            "breakdown": breakdown,
            "first": self.first,
            "each": self.seconds,
            **self.parity,
        }


def main() -> int:
    """Measures each case; one that fails is reported with its error, and the others go on."""
    cases: dict[str, Callable[[_Bench], None]] = {
        "nccl": _nccl,
        "nccl_pods": _nccl_pods,
        "nccl_tensor_parallel": _nccl_tensor_parallel,
        "httpfull": _http,
        "lora": _lora,
        "pods": _pods,
        "tensor_parallel": _tensor_parallel,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=cases, default=["nccl", "httpfull", "lora"])
    parser.add_argument(
        "--size", choices=small_model.SHAPES, default="0.1", help="of the model, in billions of parameters"
    )
    parser.add_argument("--syncs", type=int, default=20)
    parser.add_argument("--one-gpu", action="store_true", help="this process uses vLLM's GPU: httpfull, lora, pods")
    # Of an H100, 0.9 leaves too little for four NCCL groups at 30 B.
    parser.add_argument("--memory", type=float, default=0.4, help="share of the GPU's memory for vLLM")
    parser.add_argument("--all-linear", action="store_true", help="lora: all linear layers, not only q_proj and v_proj")
    parser.add_argument("--message-mib", type=int, nargs="+", help="nccl: sizes of messages to compare")
    parser.add_argument("--folder", type=Path, help="httpfull: where the trainer stages; /dev/shm otherwise")
    parser.add_argument("--seconds", type=float, default=460.0, help="the most that it takes")
    options = parser.parse_args()
    os.environ.update(NO_MULTICAST)
    allow_older_python()
    end_on_sigterm()
    if options.one_gpu and (refused := [case for case in options.only if case.startswith("nccl")]):
        parser.error(f"{', '.join(refused)}: NCCL takes one rank on a GPU; leave out --one-gpu, or choose with --only")
    targets = small_model.ALL_LINEAR if options.all_linear else small_model.ATTENTION
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        staged = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)) if options.folder else folder
        bench = _Bench(
            Path(folder), Path(staged), options.size, options.syncs, options.memory, targets, options.message_mib or ()
        )
        stop = threading.Timer(options.seconds, _out_of_time, [bench, options.seconds])
        stop.daemon = True
        stop.start()
        began = time.monotonic()
        kind, shape = small_model.SHAPES[options.size]
        bench.model = small_model.make_model(bench.folder, shape, kind, weights=False)
        print(f"model made in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        for bench.case in options.only:
            bench.began, bench.ready = time.monotonic(), 0.0
            try:
                cases[bench.case](bench)
            except Exception as error:
                bench.tell({"error": f"{type(error).__name__}: {error}"[-1500:], "log": _logs(bench)})
    return 0


def _nccl(bench: _Bench) -> None:
    """TRL's transport and ours take turns: each in two halves, so that neither gains from a warm server."""
    with serving(bench.folder, bench.log(), _NCCL, _DUMMY, memory=bench.memory) as port:
        bench.up()
        theirs = _Measured(bench, subjects.trl, port)
        kinds = [subjects.nccl(f"nccl_{size}_mib", message_bytes=size << 20) for size in bench.message_mib]
        ours = [_Measured(bench, kind, port) for kind in kinds or [subjects.nccl()]]
        for one in 2 * [theirs, *ours]:
            one.run(max(1, bench.syncs // 2))
    bench.tell(theirs.results())
    for one in ours:
        bench.tell({**one.results(), "times_trl": round(one.median / theirs.median, 3)})


def _nccl_pods(bench: _Bench) -> None:
    """A server on each GPU that this process leaves."""
    port, pods = free_port(), {"127.0.0.1": "0", "127.0.0.2": "2", "127.0.0.3": "3"}
    with ExitStack() as servers:
        servers.enter_context(_name(_PODS_HOST, list(pods)))
        for address, gpu in pods.items():
            server = serving(
                *(bench.folder, bench.log(f"-{address}"), _NCCL, _DUMMY),
                host=address,
                port=port,
                memory=bench.memory,
                CUDA_VISIBLE_DEVICES=gpu,
            )
            servers.enter_context(server)
        bench.up()
        kind = subjects.nccl("nccl_pods", _PODS_HOST)
        bench.tell(_Measured(bench, kind, port, list(pods)).run(bench.syncs).results())


def _nccl_tensor_parallel(bench: _Bench) -> None:
    arguments = (_NCCL, _DUMMY, *_SEVERAL)
    with serving(bench.folder, bench.log(), *arguments, memory=bench.memory, CUDA_VISIBLE_DEVICES="0,2") as port:
        bench.up()
        bench.tell(_Measured(bench, subjects.nccl("nccl_tensor_parallel"), port).run(bench.syncs).results())


def _http(bench: _Bench) -> None:
    with serving(bench.folder, bench.log(), *_pull(), memory=bench.memory) as port:
        bench.up()
        found = _Measured(bench, subjects.http(bench.staged / "httpfull"), port).run(bench.syncs)
        bench.tell(found.results(subjects.loads(bench.log())[-bench.syncs :]))


def _pods(bench: _Bench) -> None:
    """Servers behind one name, as the replicas of a run are; both answer for their weights."""
    port, addresses = free_port(), ("127.0.0.1", "127.0.0.2")
    with ExitStack() as servers:
        servers.enter_context(_name(_PODS_HOST, addresses))
        for address in addresses:
            log = bench.log(f"-{address}")
            memory = bench.memory / len(addresses)
            servers.enter_context(serving(bench.folder, log, *_pull(), host=address, port=port, memory=memory))
        bench.up()
        kind = subjects.http(bench.staged / "pods", "pods", _PODS_HOST)
        bench.tell(_Measured(bench, kind, port, addresses).run(bench.syncs).results())


def _tensor_parallel(bench: _Bench) -> None:
    arguments = (*_pull(), *_SEVERAL)
    with serving(bench.folder, bench.log(), *arguments, memory=bench.memory, CUDA_VISIBLE_DEVICES="0,1") as port:
        bench.up()
        kind = subjects.http(bench.staged / "tensor_parallel", "tensor_parallel")
        bench.tell(_Measured(bench, kind, port).run(bench.syncs).results())


def _lora(bench: _Bench) -> None:
    """vLLM reads the base model from its folder."""
    bench.model.save_pretrained(bench.folder)
    torch.cuda.empty_cache()  # experts are saved one by one, from copies
    arguments = ("--enable-lora", "--max-loras=4", "--max-lora-rank=16")
    with serving(
        *(bench.folder, bench.log(), *arguments), memory=bench.memory, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1"
    ) as port:
        bench.up()
        kind = subjects.lora(bench.work, bench.targets)
        bench.tell({**_Measured(bench, kind, port).run(bench.syncs).results(), "targets": len(bench.targets)})
    for file in bench.folder.glob("*.safetensors"):
        file.unlink()


def _pull() -> tuple[str, ...]:
    from gymtrain_api.transports import PULL_BACKEND

    return (f'--weight-transfer-config={{"backend":"{PULL_BACKEND}"}}', _DUMMY)


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


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _bytes(model: Any) -> int:
    return sum(parameter.nbytes for parameter in model.parameters()) if model is not None else 0


def _logs(bench: _Bench) -> str:
    found = []
    for log in bench.work.glob(f"{bench.case}*.log"):
        text = log.read_text(errors="replace")
        # What a worker died of stands far above the end, which is about its server's.
        found += [*[line for line in text.splitlines() if "Error" in line][:_FIRST_ERRORS], text[-2500:]]
    return "\n".join(found)


def _out_of_time(bench: _Bench, seconds: float) -> None:
    bench.tell({"error": f"not done in {seconds:.0f} s", "log": _logs(bench)})
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os._exit(1)  # the main thread may be in a call that hears no signal


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries' threads have nothing to save
