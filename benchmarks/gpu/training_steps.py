"""What a training step takes, by model and length: memory, tokens/s, and the share of the GPUs' peak (MFU).

    PYTHONPATH=api:tracing:trainer:. python3 -m benchmarks.gpu.training_steps 4:8192 4:8192:trl 4:32768:fsdp

Each argument is a size in billions of parameters (of Qwen3's shapes, with random weights), the tokens of a sample, and
any of `lora` for an adapter of rank 16 on all linear layers, `fsdp` for FSDP2 over all GPUs that are seen, and `trl`
for TRL's own trainer and batches instead of ours. A step has eight micro-batches of one sample on each GPU, and is the
product's own: TRL's trainer with our samples, attention and settings, float32 weights computed in bfloat16, gradient
checkpointing, AdamW. TRL's side differs in what we override; its attention is ours too, as its kernel comes from the
hub. Nothing is generated. Each argument runs in processes of its own, and prints a line of JSON.
"""

import argparse
import json
import os
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.shapes import QWEN3_06B, QWEN3_4B, QWEN3_8B, QWEN3_17B

_SHAPES = {"0.6": QWEN3_06B, "1.7": QWEN3_17B, "4": QWEN3_4B, "8": QWEN3_8B}
_WARM_UP = 1  # steps that aren't counted
_SAMPLES = 8  # of a step, on each GPU: one group
_PROMPT = 64  # tokens
PEAK = 989e12  # operations a second: H100 and H200 SXM, dense bfloat16, NVIDIA's data sheets
_GIB = 2**30
_DEADLINE = 900
_LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
_WAYS = frozenset({"lora", "fsdp", "trl"})
_LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """What one argument asks for."""

    size: str
    length: int
    ways: frozenset[str]

    @property
    def lora(self) -> dict[str, Any] | None:
        """Arguments of the adapter."""
        return _LORA if "lora" in self.ways else None

    @classmethod
    def of(cls, argument: str) -> Self:
        """Raises argparse.ArgumentTypeError where it isn't SIZE:LENGTH with any of the ways."""
        match argument.split(":"):
            case [size, length, *ways] if size in _SHAPES and length.isdecimal() and _WAYS.issuperset(ways):
                return cls(size, int(length), frozenset(ways))
        sizes, known = ", ".join(_SHAPES), ", ".join(sorted(_WAYS))
        raise argparse.ArgumentTypeError(f"{argument} isn't SIZE:LENGTH, with SIZE of {sizes}, and any of {known}")


def operations_per_token(shape: dict[str, Any], parameters: int, length: int) -> float:
    """Of a token's forward and backward: 6 for each parameter, and half of PaLM's 12 L H Q T, as attention is causal
    (arXiv 2204.02311, appendix B). What is computed again for gradient checkpointing doesn't count."""
    attention: int = 6 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"] * length
    return 6.0 * parameters + attention


def make(asked: Asked, folder: Path) -> None:
    """A model of that size, with a tokenizer that has a chat template, which TRL wants."""
    from benchmarks.gpu.attention import tokenizer
    from dev.gpu.small_model import make_model

    make_model(folder, _SHAPES[asked.size], "qwen3")
    tokenizer().save_pretrained(folder)


def measure(asked: Asked, model: Path, steps: int) -> dict[str, Any]:
    """Steps of one size: on this process's GPU, or on those of all ranks that torchrun has started."""
    import torch

    from benchmarks.gpu.attention import Clock, Rollouts
    from dev.gpu.older_versions import allow_older_python, allow_older_torch
    from dev.gpu.vllm_server import NO_MULTICAST
    from gymtrain_trainer.sizing.shapes import shape_of

    os.environ.update(NO_MULTICAST)
    allow_older_python()
    allow_older_torch()
    shape, clock, gpus = _SHAPES[asked.size], Clock(), _gpus()
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {
            "output_dir": folder,
            "max_steps": steps,
            "per_device_train_batch_size": 1,
            "token_budget": 0,
            "report_to": [],
            "disable_tqdm": True,
            "save_strategy": "no",
            "max_staleness": steps,
            "bf16": True,
            "dtype": "float32",
            "learning_rate": 1e-6,
            "num_generations": _SAMPLES,
        }
        if "fsdp" in asked.ways:
            sharding = {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"], "cpu_ram_efficient_loading": True}
            arguments |= {"fsdp": True, "fsdp_config": sharding}
        answer = asked.length - _PROMPT
        rollouts = Rollouts(_PROMPT, answer, _SAMPLES * gpus * (steps + 2), shortest=answer)
        if "trl" in asked.ways:
            trainer = _trl(arguments, model, clock, asked, rollouts)
        else:
            trainer = _ours(arguments, model, clock, asked, rollouts)
        trainer.train()
    free, total = torch.cuda.mem_get_info()
    seconds = statistics.median(clock.seconds[_WARM_UP:])
    tokens = _SAMPLES * asked.length  # on each GPU
    parameters = shape_of(str(model)).parameters
    return {
        "size": asked.size,
        "length": asked.length,
        "side": "trl" if "trl" in asked.ways else "ours",
        "trained": "adapter" if "lora" in asked.ways else "all",
        "gpus": gpus,
        "parameters": parameters,
        "step_s": round(seconds, 2),
        "samples_per_s": round(_SAMPLES * gpus / seconds, 3),
        "tokens_per_s_gpu": round(tokens / seconds),
        # Of an adapter, the gradients of the other weights aren't computed: a third less.
        "mfu": round(tokens * operations_per_token(shape, parameters, asked.length) / seconds / PEAK, 3),
        "gpu_gib": round((total - free) / _GIB, 1),  # the allocator has kept the most that it ever held
        "allocated_gib": round(torch.cuda.max_memory_allocated() / _GIB, 1),
        "host_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB, 1),
        "all_step_s": [round(one, 2) for one in clock.seconds],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def _gpus() -> int:
    """Ranks that torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _ours(arguments: dict[str, Any], model: Path, clock: Any, asked: Asked, rollouts: Any) -> Any:
    from benchmarks.gpu.attention import NoTransfer
    from gymtrain_trainer.trl.settings import Batch, StepSettings
    from gymtrain_trainer.trl.trainer import build_trainer
    from gymtrain_trainer.trl.worker import TRLWorker

    batch = Batch(per_device=1, accumulation=_SAMPLES, processes=_gpus(), num_generations=_SAMPLES, token_budget=0)
    return build_trainer(
        # A step's micro-batches are one item of our loader (settings.trl_arguments).
        arguments | {"gradient_accumulation_steps": 1},
        model,
        callbacks=[clock],
        lora=asked.lora,
        rollout_worker=TRLWorker(rollouts),
        weight_transfer=NoTransfer(),
        steps=StepSettings(batch),
    )


def _trl(arguments: dict[str, Any], model: Path, clock: Any, asked: Asked, rollouts: Any) -> Any:
    import pyarrow
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AttentionInterface
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from benchmarks.gpu.attention import NoTransfer
    from gymtrain_trainer.trl.attention import TREE_ATTENTION, TreeAttention
    from gymtrain_trainer.trl.worker import TRLWorker

    worker: Any = TRLWorker(rollouts)
    worker.rollout_buffer = _plain_samples(rollouts)
    trainer = AsyncGRPOTrainer(
        model=str(model),
        args=AsyncGRPOConfig(**arguments, gradient_accumulation_steps=_SAMPLES),
        train_dataset=Dataset(pyarrow.table({"prompt": [""]}), fingerprint="steps"),
        callbacks=[clock],
        peft_config=LoraConfig(**asked.lora) if asked.lora is not None else None,
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )
    AttentionInterface.register(TREE_ATTENTION, TreeAttention())
    return trainer


def _plain_samples(rollouts: Any) -> queue.Queue[Any]:
    """The same samples that our side trains on, as TRL has them in its queue."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    samples: queue.Queue[Any] = queue.Queue()
    while rollouts.buffer.qsize():
        group = rollouts.buffer.get(timeout=1.0)
        for sample in group.samples:
            plain = RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.array(sample.token_ids, np.int64),
                completion_mask=np.array(sample.mask, np.int64),
                old_log_probs=np.array(sample.log_probs, np.float32),
                advantage=2.0 * sample.reward - 1.0,
                model_version=1,
                group_id=group.id,
                metrics={"reward": sample.reward},
            )
            samples.put(plain)
    return samples


def main() -> int:
    """Measures each size in processes of its own; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", metavar="SIZE:LENGTH[:lora][:fsdp][:trl]", type=Asked.of)
    parser.add_argument("--steps", type=int, default=4, help="of each; the first isn't counted (%(default)s)")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.sizes[0], options.make)
        return 0
    if options.here:
        found = measure(options.sizes[0], options.here, options.steps)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found), flush=True)
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for asked in options.sizes:
            error = _measured(asked, Path(folder, asked.size), options.steps)
            if error is not None:
                failed = True
                print(json.dumps({"failed": _argument(asked), "why": error[-6000:]}), flush=True)
    return int(failed)


def _measured(asked: Asked, model: Path, steps: int) -> str | None:
    """Prints what was found; what went wrong otherwise."""
    this = ["-m", "benchmarks.gpu.training_steps", _argument(asked), f"--steps={steps}"]
    launch: list[str] = []
    if "fsdp" in asked.ways:
        import torch

        launch = ["-m", "torch.distributed.run", f"--nproc-per-node={torch.cuda.device_count()}"]
        launch += ["--rdzv-backend=c10d", f"--rdzv-endpoint={_LOCAL}:0", f"--local-addr={_LOCAL}"]
    commands = [[sys.executable, *launch, *this, f"--here={model}"]]
    if not model.exists():
        commands.insert(0, [sys.executable, *this, f"--make={model}"])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
        if done.returncode != 0:
            return done.stderr.strip()
    print(done.stdout.strip().splitlines()[-1], flush=True)
    return None


def _argument(asked: Asked) -> str:
    return ":".join([asked.size, str(asked.length), *sorted(asked.ways)])


if __name__ == "__main__":
    sys.exit(main())
