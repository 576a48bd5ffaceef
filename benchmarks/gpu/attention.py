"""The training step's attention on a GPU: torch's variable-length kernel against the exact loop over segments.

    PYTHONPATH=api:tracing:trainer:. python3 -m benchmarks.gpu.attention

Makes a model of SmolLM2-135M's shape with random weights, runs whole steps of TRL's AsyncGRPOTrainer on made-up
samples with each of the two, and compares the gradients of one packed row. Prints one line of JSON for each.
"""

import importlib.util
import json
import queue
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, TrainerCallback
from transformers.integrations.flash_attention import get_target_dtype

from benchmarks.shapes import SMOLLM2_135M
from dev.gpu.older_versions import allow_older_torch
from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.buffer import GroupBuffer
from gymtrain_trainer.trl import attention
from gymtrain_trainer.trl.attention import TREE_ATTENTION, TreeAttention
from gymtrain_trainer.trl.settings import Batch, StepSettings
from gymtrain_trainer.trl.trainer import build_trainer
from gymtrain_trainer.trl.worker import TRLWorker

_STEPS = 8
_WARM_UP = 2  # steps left out of the median
_GROUP = 8
_SHAPES = {"short answers": (100, 12, 416), "long answers": (200, 400, 128)}  # prompt, completion, samples a step


def tokenizer() -> Any:
    """The tiny model's."""
    path = Path(__file__).parents[2] / "images/model-tiny/build.py"
    spec = importlib.util.spec_from_file_location("model_tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_tokenizer()


def write_model(folder: Path) -> None:
    """SmolLM2-135M's shape, random weights."""
    config = LlamaConfig(**SMOLLM2_135M, max_position_embeddings=8192)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


class ExactLoop(TreeAttention):
    """The loop over segments that a GPU would need without a kernel."""

    def __call__(self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **tree: Any) -> Any:
        """By segment, whatever the type."""
        dtype = get_target_dtype(query, module) or query.dtype
        q, k, v = (part.to(dtype) for part in (query, key, value))
        lengths = (tree["tree_kv_index"], tree["tree_cu_seqlens_q"], tree["tree_cu_seqlens_k"])
        segments = attention.segments_of(*lengths)
        return attention.by_segment(q, k, v, segments, tree.get("scaling"), tree.get("sliding_window")), None


class Rollouts:
    """A worker whose samples are all there before the first step."""

    def __init__(self, prompt: int, completion: int, count: int, *, shortest: int | None = None) -> None:
        """`shortest`: completion, in tokens; without it, half of `completion`."""
        self.buffer = GroupBuffer(lambda: 1)
        self.metrics: queue.Queue[dict[str, Any]] = queue.Queue()
        random = np.random.default_rng(0)
        for number in range(count // _GROUP):
            shared = random.integers(0, 400, prompt).tolist()
            lengths = random.integers(shortest or max(1, completion // 2), completion + 1, _GROUP).tolist()
            answers = [random.integers(0, 400, length).tolist() for length in lengths]
            rewards = tuple(float(place % 2) for place in range(_GROUP))
            samples = [
                TrainingSample(
                    token_ids=array("q", shared + answer),
                    mask=array("b", [0] * prompt + [1] * len(answer)),
                    log_probs=array("f", [0.0] * prompt + [-5.0] * len(answer)),
                    versions=(1,),
                    group_id=number,
                    rollout=place,
                    agent="made up",
                    reward=rewards[place],
                )
                for place, answer in enumerate(answers)
            ]
            self.buffer.put(SampleGroup(number, "made up", rewards, tuple(samples)))

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def update_model_version(self, model_version: int) -> None:
        """Not needed: no sample is stale."""

    def check_health(self) -> None:
        """Raises RuntimeError: there are always enough samples."""
        raise RuntimeError("out of samples")


class NoTransfer:
    """Weights go nowhere."""

    sent_dtype = None

    def init_weight_transfer(self) -> None:
        """Nothing."""

    def pause(self) -> None:
        """Nothing."""

    def send_weights(self, iterator: Any) -> None:
        """Reads them."""
        for _ in iterator:
            pass

    def resume(self) -> None:
        """Nothing."""

    def destroy(self) -> None:
        """Nothing."""


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Seconds of each step, without the wait for samples."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """The samples are there."""
        torch.cuda.synchronize()
        self._began = time.monotonic()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        torch.cuda.synchronize()
        self.seconds.append(time.monotonic() - self._began)


def measure(model: Path, shape: tuple[int, int, int], kernel: TreeAttention) -> dict[str, Any]:
    """Steps with one attention."""
    prompt, completion, samples = shape
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "max_steps": _STEPS,
            "per_device_train_batch_size": samples,
            "token_budget": 0,
            "report_to": [],
            "disable_tqdm": True,
            "save_strategy": "no",
            "max_staleness": 4,
            "bf16": True,
            "gradient_checkpointing": False,
            "learning_rate": 1e-6,
            "num_generations": _GROUP,
        }
        batch = Batch(per_device=samples, accumulation=1, processes=1, num_generations=_GROUP, token_budget=0)
        trainer = build_trainer(
            arguments,
            model,
            callbacks=[clock],
            rollout_worker=TRLWorker(Rollouts(prompt, completion, samples * (_STEPS + 2))),
            weight_transfer=NoTransfer(),
            steps=StepSettings(batch),
        )
        AttentionInterface.register(TREE_ATTENTION, kernel)
        trainer.train()
    del trainer
    torch.cuda.empty_cache()
    return {
        "step_seconds": round(statistics.median(clock.seconds[_WARM_UP:]), 4),
        "all": [round(s, 4) for s in clock.seconds],
    }


def compare() -> dict[str, float]:
    """Outputs and gradients of one packed row: the kernel and the exact loop, both against float64."""
    from trl.experimental.async_grpo.packing import TreeRow

    random, row = np.random.default_rng(1), TreeRow()
    for group in range(6):
        prompt = random.integers(0, 400, 150).tolist()
        for _ in range(_GROUP):
            completion = random.integers(0, 400, int(random.integers(5, 120))).tolist()
            ids = np.array(prompt + completion)
            mask = np.array([0] * len(prompt) + [1] * len(completion))
            sample = {"input_ids": ids, "completion_mask": mask, "old_log_probs": np.zeros(len(ids))}
            row.add(sample | {"advantage": 1.0, "group_id": group})
    packed = row.pack()
    tree = {name: packed[name].cuda() for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    longest_q, longest_k = packed["tree_max_seqlens"].tolist()
    tree |= {"tree_max_seqlen_q": longest_q, "tree_max_seqlen_k": longest_k, "scaling": 0.125}
    tokens = packed["input_ids"].shape[-1]
    torch.manual_seed(0)
    parts = [torch.randn(1, heads, tokens, 64, device="cuda").bfloat16() for heads in (9, 3, 3)]
    upstream = torch.randn(1, tokens, 9, 64, device="cuda").bfloat16()

    def run(kernel: TreeAttention, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [part.to(dtype, copy=True).requires_grad_() for part in parts]  # gradients add up in a tensor
        query, key, value = given
        out, _ = kernel(torch.nn.Identity(), query, key, value, None, **tree)
        out.backward(upstream.to(out.dtype))
        return [out.detach().double(), *(part.grad.double() for part in given if part.grad is not None)]

    truth = run(TreeAttention(dense_limit=0), torch.float64)
    found = {}
    for name, kernel in (("varlen", TreeAttention()), ("loop", ExactLoop())):
        for what, mine, exact in zip(
            ("output", "query grad", "key grad", "value grad"), run(kernel, torch.bfloat16), truth, strict=True
        ):
            found[f"{name} {what}"] = float((mine - exact).abs().max() / exact.abs().max())
    return {key: round(value, 6) for key, value in found.items()} | {"tokens": tokens}


def main() -> int:
    """Prints the results; 1 where the kernel is less exact than the loop in the same precision by a factor of 2."""
    allow_older_torch()
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    exact = compare()
    print(json.dumps({"relative error": exact}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        for name, shape in _SHAPES.items():
            times = {
                "varlen": measure(Path(folder), shape, TreeAttention()),
                "loop": measure(Path(folder), shape, ExactLoop()),
            }
            ratio = times["loop"]["step_seconds"] / times["varlen"]["step_seconds"]
            print(json.dumps({"shape": name, **times, "times faster": round(ratio, 1)}), flush=True)
    return int(exact["varlen output"] > 2 * exact["loop output"])


if __name__ == "__main__":
    sys.exit(main())
