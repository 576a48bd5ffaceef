"""What a training step takes on one GPU, by model and length: memory, tokens/s, and the share of the GPU's peak (MFU).

    PYTHONPATH=api:tracing:trainer:. python3 -m benchmarks.gpu.training_steps 4:8192 4:32768 4:8192:lora

Each argument is a size in billions of parameters (of Qwen3's shapes, with random weights), the tokens of a sample, and
`lora` for an adapter of rank 16 on all linear layers. A step has eight micro-batches of one sample, and is the
product's own: TRL's trainer with our samples, attention and settings, float32 weights computed in bfloat16, gradient
checkpointing, AdamW. Nothing is generated. Each size runs in a process of its own, which prints a line of JSON.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.shapes import QWEN3_06B, QWEN3_4B, QWEN3_8B, QWEN3_17B

_SHAPES = {"0.6": QWEN3_06B, "1.7": QWEN3_17B, "4": QWEN3_4B, "8": QWEN3_8B}
_WARM_UP = 1  # steps that aren't counted
_SAMPLES = 8  # of a step: one group
_PROMPT = 64  # tokens
_PEAK = 989e12  # operations a second: H100 and H200 SXM, dense bfloat16, NVIDIA's data sheets
_GIB = 2**30
_DEADLINE = 900
_LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}


def operations_per_token(shape: dict[str, Any], parameters: int, length: int) -> float:
    """Of a token's forward and backward: 6 for each parameter, and half of PaLM's 12 L H Q T, as attention is causal
    (arXiv 2204.02311, appendix B). What is computed again for gradient checkpointing doesn't count."""
    attention: int = 6 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"] * length
    return 6.0 * parameters + attention


def measure(size: str, length: int, steps: int, *, lora: bool) -> dict[str, Any]:
    """Steps of one size."""
    import torch

    from benchmarks.gpu.attention import Clock, NoTransfer, Rollouts, tokenizer
    from dev.gpu.small_model import make_model
    from gymtrain_trainer.trl.settings import Batch, StepSettings
    from gymtrain_trainer.trl.trainer import build_trainer
    from gymtrain_trainer.trl.worker import TRLWorker

    shape, clock = _SHAPES[size], Clock()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder, "model"), shape, "qwen3")
        parameters = sum(one.numel() for one in model.parameters())
        tokenizer().save_pretrained(Path(folder, "model"))  # with a chat template, which TRL wants
        del model
        torch.cuda.empty_cache()
        arguments = {
            "output_dir": folder,
            "max_steps": steps,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "token_budget": 0,
            "report_to": [],
            "disable_tqdm": True,
            "save_strategy": "no",
            "max_staleness": 4,
            "bf16": True,
            "dtype": "float32",
            "learning_rate": 1e-6,
            "num_generations": _SAMPLES,
        }
        batch = Batch(per_device=1, accumulation=_SAMPLES, processes=1, num_generations=_SAMPLES, token_budget=0)
        rollouts = Rollouts(_PROMPT, length - _PROMPT, _SAMPLES * (steps + 2), shortest=length - _PROMPT)
        trainer = build_trainer(
            arguments,
            Path(folder, "model"),
            callbacks=[clock],
            lora=_LORA if lora else None,
            rollout_worker=TRLWorker(rollouts),
            weight_transfer=NoTransfer(),
            steps=StepSettings(batch),
        )
        trainer.train()
    free, total = torch.cuda.mem_get_info()
    seconds = statistics.median(clock.seconds[_WARM_UP:])
    tokens = _SAMPLES * length
    return {
        "size": size,
        "length": length,
        "trained": "adapter" if lora else "all",
        "parameters": parameters,
        "step_s": round(seconds, 2),
        "samples_per_s": round(_SAMPLES / seconds, 3),
        "tokens_per_s": round(tokens / seconds),
        # Of an adapter, the gradients of the other weights aren't computed: a third less.
        "mfu": round(tokens * operations_per_token(shape, parameters, length) / seconds / _PEAK, 3),
        "gpu_gib": round((total - free) / _GIB, 1),  # the allocator has kept the most that it ever held
        "allocated_gib": round(torch.cuda.max_memory_allocated() / _GIB, 1),
        "host_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB, 1),
        "all_step_s": [round(one, 2) for one in clock.seconds],
    }


def main() -> int:
    """Measures each size in its own process; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", metavar="SIZE:LENGTH[:lora]")
    parser.add_argument("--steps", type=int, default=4, help="of each; the first isn't counted (%(default)s)")
    parser.add_argument("--here", action="store_true", help="one size, in this process")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(_one(asked.sizes[0], asked.steps)))
        return 0
    failed = False
    for wanted in asked.sizes:
        command = [sys.executable, "-m", "benchmarks.gpu.training_steps", wanted, f"--steps={asked.steps}", "--here"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
        if done.returncode == 0:
            print(done.stdout.strip().splitlines()[-1], flush=True)
        else:
            failed = True
            print(json.dumps({"failed": wanted, "why": done.stderr.strip()[-2000:]}), flush=True)
    return int(failed)


def _one(wanted: str, steps: int) -> dict[str, Any]:
    import torch

    size, length, *more = wanted.split(":")
    found = measure(size, int(length), steps, lora="lora" in more)
    return found | {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


if __name__ == "__main__":
    sys.exit(main())
