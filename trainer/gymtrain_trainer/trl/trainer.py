"""Makes the AsyncGRPOTrainer: TRL's class as it is, fed with our worker and transport."""

import contextlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AttentionInterface, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer

from gymtrain_trainer.trl.attention import TREE_ATTENTION, TreeAttention

log = logging.getLogger(__name__)


@contextlib.contextmanager
def _no_peak_flops_on_cpu() -> Iterator[None]:
    """TRL asks CUDA for the device's name, whatever the device; None switches its MFU metrics off.

    There is no setting for it in TRL 1.16, so its function is replaced while the trainer is made.
    """
    original = async_grpo_trainer.get_peak_flops_per_device
    if not torch.cuda.is_available():
        async_grpo_trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    try:
        yield
    finally:
        async_grpo_trainer.get_peak_flops_per_device = original


def build_trainer(
    arguments: dict[str, Any],
    model: Path,
    *,
    callbacks: Sequence[TrainerCallback],
    lora: Mapping[str, Any] | None = None,
    rollout_worker: Any = None,
    weight_transfer: Any = None,
    config_class: type[AsyncGRPOConfig] = AsyncGRPOConfig,
) -> AsyncGRPOTrainer:
    """The trainer with its model loaded. `rollout_worker` and `weight_transfer` count on rank 0 only.

    `arguments`: from settings.trl_arguments; `lora`: from settings.lora_arguments; `config_class` makes TRL's config.
    """
    disable_progress_bar()  # a pod's log shows each redraw as text
    config = config_class(**arguments)
    with _no_peak_flops_on_cpu():
        trainer = AsyncGRPOTrainer(
            model=str(model),
            args=config,
            # TRL wants a dataset; the rows come through the rollout worker. With a name of its own for it, datasets
            # needn't pickle half of pyarrow to make one up, which not every combination of releases can.
            train_dataset=Dataset(pyarrow.table({"prompt": [""]}), fingerprint="gymtrain"),
            callbacks=list(callbacks),
            peft_config=LoraConfig(**lora) if lora is not None else None,
            rollout_worker=rollout_worker,
            weight_transfer=weight_transfer,
        )
    trainer.remove_callback(PrinterCallback)
    if config.use_cpu or importlib.util.find_spec("kernels") is None:
        # TRL registered its own under this name when it was made; the last registration counts.
        AttentionInterface.register(TREE_ATTENTION, TreeAttention())
    return trainer


def sent_parameters(trainer: AsyncGRPOTrainer) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters that TRL sends to a weight transfer, under the names that it sends; sharded ones not gathered."""
    found: Iterator[tuple[str, torch.Tensor]] = async_grpo_trainer._iter_vllm_named_params(
        trainer.accelerator.unwrap_model(trainer.model)
    )
    return found
