"""`python -m gymtrain_trainer.sizing`: what a model or a run takes, and what to change if it doesn't fit."""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.sizing.proposals import proposals, serving_proposal
from gymtrain_trainer.sizing.runs import Sizing, read_run, sizing_of
from gymtrain_trainer.sizing.serving import UTILIZATION, Serving
from gymtrain_trainer.sizing.shapes import BUILT_IN, shape_of
from gymtrain_trainer.sizing.training import GIB, Adapter, Needs, Training, checkpoints, gpu, host, overlaps, staged

_EXAMPLES = """examples:
  python -m gymtrain_trainer.sizing Qwen3-8B --gpus 8 --length 32768 --fsdp --vllm-gpus 2
  python -m gymtrain_trainer.sizing /models/my-model --lora 16
  python -m gymtrain_trainer.sizing --run examples/slurm-4-nodes.yaml --gpu-memory 80

It exits with 0 if everything fits, 1 if not, 2 if it can't be computed. What is computed, and what is left out:
docs/sizing.md."""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command = argparse.ArgumentParser(
        prog="python -m gymtrain_trainer.sizing",
        description="Computes the memory of training and serving a model: an estimate, without a GPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "model", nargs="?", help=f"folder with config.json, or one of {', '.join(BUILT_IN)}; with --run: its shape"
    )
    command.add_argument("--run", type=Path, metavar="FILE", help="a GymTrainingRun: its settings replace all below")
    command.add_argument("--gpu-memory", type=_positive, default=80.0, metavar="GIB", help="of a GPU (default 80)")
    command.add_argument("--vllm-gpu-memory", type=_positive, metavar="GIB", help="of a GPU of vLLM, if not the same")
    command.add_argument("--json", action="store_true", help="print JSON; all numbers are bytes")
    train = command.add_argument_group("training")
    train.add_argument("--nodes", type=_whole, default=1, help="nodes that train (default 1)")
    train.add_argument("--gpus", type=_whole, default=1, help="GPUs of each (default 1)")
    train.add_argument("--length", type=_whole, default=8192, help="tokens of the longest sample (default 8192)")
    train.add_argument("--tokens", type=_whole, help="of a micro-batch on one GPU (default: one longest sample)")
    train.add_argument("--fsdp", action="store_true", help="shard over all of them")
    train.add_argument("--no-gradient-checkpointing", action="store_true")
    train.add_argument("--lora", type=_whole, metavar="RANK", help="train an adapter of all linear layers")
    train.add_argument("--transport", choices=("NCCL", "HTTPFull", "LoRAFilesystem"), default="NCCL")
    train.add_argument("--host-memory", type=_positive, metavar="GIB", help="of a trainer pod (default: not compared)")
    serve = command.add_argument_group("serving")
    serve.add_argument("--vllm-gpus", type=_whole, default=1, help="of one vLLM server: tensor parallel (default 1)")
    serve.add_argument("--gpu-memory-utilization", type=_positive, default=UTILIZATION, help="vLLM's (default 0.92)")
    return command


def _whole(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _positive(text: str) -> float:
    if not (value := float(text)) > 0 or math.isinf(value):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if it fits, 1 if not, 2 if it can't be computed."""
    command = parser()
    options = command.parse_args(arguments)
    if options.model is None and options.run is None:
        command.error("name a model, or a run with --run")
    try:
        sizing = _sizing(options)
        report = report_of(sizing)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) if options.json else "\n".join(lines_of(sizing)))
    return 0 if report["fits"] else 1


def _sizing(options: argparse.Namespace) -> Sizing:
    shape = shape_of(options.model) if options.model is not None else None
    if options.run is not None:
        return sizing_of(read_run(options.run), shape, options.gpu_memory, options.vllm_gpu_memory)
    assert shape is not None
    tokens = options.tokens or options.length
    if tokens < options.length:
        raise SettingsError(f"--tokens {tokens}: a micro-batch holds at least one sample of --length {options.length}")
    training = Training(
        shape=shape,
        nodes=options.nodes,
        gpus=options.gpus,
        gpu_memory=options.gpu_memory,
        length=options.length,
        tokens=tokens,
        checkpointing=not options.no_gradient_checkpointing,
        sharded=options.fsdp and options.nodes * options.gpus > 1,
        adapter=Adapter(options.lora) if options.lora else None,
        transport=options.transport,
    )
    serving = Serving(
        shape=shape,
        tensor_parallel=options.vllm_gpus,
        gpu_memory=options.vllm_gpu_memory or options.gpu_memory,
        utilization=options.gpu_memory_utilization,
        length=options.length,
        syncs=options.transport == "NCCL",
    )
    host_memory = int(options.host_memory * GIB) if options.host_memory else None
    return Sizing(training, serving, host_memory=host_memory)


def _needs(sizing: Sizing) -> Iterator[Needs]:
    yield gpu(sizing.training)
    yield host(sizing.training, sizing.host_memory)
    yield checkpoints(sizing.training, sizing.checkpoint_size)
    if sizing.serving is not None:
        yield sizing.serving.needs()


def fits(sizing: Sizing) -> bool:
    """Whether everything fits of which is known how much there is."""
    return all(need.fits for need in _needs(sizing)) and (sizing.serving is None or sizing.serving.fits)


def report_of(sizing: Sizing) -> dict[str, Any]:
    """For programs. Numbers are bytes where nothing else is said."""
    training, serving = sizing.training, sizing.serving
    wider = serving_proposal(serving) if serving is not None else None
    return {
        "model": training.shape.name,
        "parameters": training.shape.parameters,
        "trained_parameters": training.trained,
        "fits": fits(sizing),
        "needs": {
            need.what: {
                "fits": need.fits,
                "total": need.total,
                "room": need.room,
                "parts": {part.name: part.bytes for part in need.parts},
                "detail": dict(need.detail),
            }
            for need in _needs(sizing)
        },
        "staged_by_http_full": staged(training),
        "syncs_overlap": overlaps(training),
        "rollouts_per_server": serving.rollouts if serving is not None else None,
        "kv_bytes_per_token": training.shape.kv_bytes(serving.tensor_parallel) if serving is not None else None,
        "proposals": [
            {"changes": list(proposal.changes), "training_gpu": gpu(proposal.training).total}
            for proposal in proposals(training)
        ],
        "proposed_tensor_parallel": wider.tensor_parallel if wider is not None else None,
    }


def lines_of(sizing: Sizing) -> Iterator[str]:
    """For people."""
    yield from describe(sizing.training)
    for need in _needs(sizing):
        yield ""
        yield from _table(need)
    yield ""
    yield from _notes(sizing)
    if fits(sizing):
        yield "Everything fits of which the room is known. All numbers are estimates: docs/sizing.md."
        return
    yield "It does not fit."
    yield from _advice(sizing)


def describe(training: Training) -> Iterator[str]:
    """What is computed."""
    shape = training.shape
    adapted = training.adapter is not None
    what = f"an adapter of {training.trained / 1e6:.0f} M more is trained" if adapted else "all are trained"
    ways = ["FSDP2" if training.sharded else "DDP" if training.processes > 1 else "one process"]
    ways += ["gradient checkpointing"] if training.checkpointing else []
    yield f"{shape.name}: {shape.parameters / 1e9:.2f} B parameters; {what}"
    yield f"{training.nodes} x {training.gpus} GPUs of {training.gpu_memory:g} GiB, {', '.join(ways)}"
    yield f"micro-batches of {training.tokens} tokens on each GPU, samples of up to {training.length}"


def _table(need: Needs) -> Iterator[str]:
    yield f"{need.what:<24}     GiB"
    for part in need.parts:
        yield f"  {part.name:<22}{part.bytes / GIB:>8.1f}  {part.what}"
    end = "" if need.room is None else f"  of {need.room / GIB:.1f}: {'fits' if need.fits else 'DOES NOT FIT'}"
    yield f"  {'total':<22}{need.total / GIB:>8.1f}{end}"


def _notes(sizing: Sizing) -> Iterator[str]:
    training, serving = sizing.training, sizing.serving
    if serving is not None:
        each = training.shape.kv_bytes(serving.tensor_parallel) / 1024
        servers = "" if sizing.replicas == 1 else f", {sizing.replicas * serving.rollouts} on {sizing.replicas} servers"
        yield (
            f"vLLM holds {serving.rollouts} rollouts of {serving.length} tokens at once{servers}; "
            f"a token takes {each:.0f} KiB on each GPU."
        )
    if training.transport == "HTTPFull":
        yield f"HTTPFull stages {staged(training) / GIB:.1f} GiB on the scratch disk of rank 0."
    if training.transport == "NCCL" and gpu(training).fits:
        copies = (
            "by a copy, while training goes on" if overlaps(training) else "while training waits: no room for a copy"
        )
        yield f"With maxStaleness above 0, weights leave {copies}."


def _advice(sizing: Sizing) -> Iterator[str]:
    training, serving = sizing.training, sizing.serving
    if not gpu(training).fits:
        found = proposals(training)
        yield (
            "Training fits with:"
            if found
            else f"Training does not fit with up to 128 GPUs of {training.gpu_memory:g} GiB."
        )
        for number, proposal in enumerate(found, 1):
            yield f"  {number}. {gpu(proposal.training).total / GIB:.1f} GiB"
            yield from (f"     - {change}" for change in proposal.changes)
    if serving is not None and not serving.fits:
        if not serving.divides:
            heads = f"{serving.shape.heads} heads"
            yield f"vLLM refuses {serving.tensor_parallel} GPUs a server: they don't divide {heads}."
        wider = serving_proposal(serving)
        yield (
            f"vLLM fits with inference.gpus: {wider.tensor_parallel}"
            if wider is not None
            else "vLLM does not fit on 8 GPUs: lower --max-model-len; for the sync's buffers, --gpu-memory-utilization"
        )
    if not host(training, sizing.host_memory).fits:
        yield f"A trainer pod needs memory: {math.ceil(host(training).total / GIB)}Gi, in trainer.resources."
    if not checkpoints(training, sizing.checkpoint_size).fits:
        yield f"The volume needs trainer.checkpoint.size: {math.ceil(checkpoints(training).total / GIB)}Gi."
