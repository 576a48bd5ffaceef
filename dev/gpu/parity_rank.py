"""One rank of dev/gpu/parity.py: `python3 -m dev.gpu.parity_rank FOLDER PORT NOISE`, with torchrun's environment.

TRL's own trainer with FSDP, to the end of its first sync and of the check behind it; nothing is trained. Tensors with
NOISE in their names, where it isn't empty, are exchanged for noise on their way to vLLM. Prints one line of JSON:

| key | |
|---|---|
| error | what the check ended with; null where it passed |
| difference | mean difference of log-probabilities; null on other ranks than 0, and where the check failed |
| gathered | parameters of which this rank has more than its share afterwards |
| held_bytes, most_bytes | on the GPU before the check, and the most meanwhile |
| seconds | of the check; ranks other than 0 also wait in it while vLLM samples |
"""

import json
import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from torch.distributed.tensor import DTensor

from dev.gpu.older_versions import allow_older_python, allow_older_torch
from gymtrain_trainer.trl.framework import leave_out_vllm

leave_out_vllm()

from gymtrain_trainer.rollouts.buffer import GroupBuffer  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.trl.parity import ParityCallback  # noqa: E402 - imports TRL, after vLLM is left out
from gymtrain_trainer.trl.settings import Batch, StepSettings  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.trl.trainer import ELSEWHERE, TRLTrainer, build_trainer  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.trl.worker import TRLWorker  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.weights import (  # noqa: E402 - after vLLM is left out
    NCCL,
    ParityCheck,
    ParityWatch,
    SyncSettings,
    WeightParityError,
    WeightSync,
)

_PROMPTS = [[5, 6, 7, 8], list(range(100, 160)), list(range(3000, 3200))]
_THRESHOLD = 0.5  # random weights of this spread differ more in bfloat16 than trained ones do: by 0.04 to 0.3
_DTYPE = "bfloat16"  # of the weights in vLLM
_ARGUMENTS = {
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "token_budget": 0,
    "dtype": "float32",
    "bf16": True,
    "fsdp": True,
    "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


class _CheckedError(Exception):
    """The check has passed: nothing more is to be done."""


class _MeasuredCheck(ParityCallback):
    """The check of the first sync."""

    held_bytes = most_bytes = 0
    seconds = 0.0

    def on_train_begin(self, *arguments: Any, **more: Any) -> None:
        """Checks, and ends the training."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.held_bytes, started = torch.cuda.memory_allocated(), time.monotonic()
        try:
            super().on_train_begin(*arguments, **more)
        finally:
            self.seconds, self.most_bytes = time.monotonic() - started, torch.cuda.max_memory_allocated()
        raise _CheckedError


class _NoRollouts:
    """What is asked of rollouts before the first step."""

    def __init__(self) -> None:
        self.buffer = GroupBuffer(lambda: 0)
        self.metrics: queue.Queue[dict[str, Any]] = queue.Queue()

    def start(self) -> None:
        """TRL has synced."""

    def stop(self) -> None:
        """The end."""

    def update_model_version(self, model_version: int) -> None:
        """TRL has synced."""

    def check_health(self) -> None:
        """All is well."""


def check(folder: Path, port: int, noise: str) -> dict[str, Any]:
    """What this rank found."""
    rank, made = int(os.environ["RANK"]), list[TRLTrainer]()
    sync = _weight_sync(made, port, noise) if rank == 0 else None
    trainer = build_trainer(
        {**_ARGUMENTS, "output_dir": str(folder / "out")},
        folder / "model",
        callbacks=[],
        rollout_worker=TRLWorker(_NoRollouts()),
        weight_transfer=sync if sync is not None else ELSEWHERE,
        steps=StepSettings(Batch(per_device=8, accumulation=1, processes=1, num_generations=8, token_budget=0)),
    )
    made.append(TRLTrainer(trainer, source=folder / "model", dtype="auto", trains_adapter=False, settle_transport=None))
    checking, error = _MeasuredCheck(trainer, sync), None
    trainer.add_callback(checking)
    try:
        made[0].run(None)
    except WeightParityError as found:
        error = f"{type(found).__name__}: {found}"
    except _CheckedError:
        pass
    return {
        "rank": rank,
        "error": error,
        "difference": sync.stats.last_parity if sync is not None else None,
        "gathered": [name for name, tensor in made[0].parameters() if not isinstance(tensor, DTensor)],
        "held_bytes": checking.held_bytes,
        "most_bytes": checking.most_bytes,
        "seconds": round(checking.seconds, 3),
    }


def _weight_sync(made: list[TRLTrainer], port: int, noise: str) -> WeightSync:
    """`made`: the trainer, once it is."""

    def exchanged(version: int, stream: Iterator[tuple[str, Any]], dtype: str | None) -> Iterator[tuple[str, Any]]:
        for name, tensor in stream:
            yield name, torch.randn_like(tensor) * 0.06 if noise and noise in name else tensor

    settings = SyncSettings(
        run="gpu",
        attempt=1,
        pods_host="127.0.0.1",
        weights_url="http://127.0.0.1:0/weights",
        timeout_seconds=60.0,
        pods_port=port,
    )
    transport = NCCL(lambda: made[0].parameters(), dtype=_DTYPE)
    parity = ParityWatch(ParityCheck(_PROMPTS, threshold=_THRESHOLD), dtype=_DTYPE)
    return WeightSync.over(settings, transport, parity=parity, watch=exchanged)


if __name__ == "__main__":
    allow_older_python()
    allow_older_torch()
    print(json.dumps(check(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])), flush=True)
    os._exit(0)  # libraries' threads have nothing to save
