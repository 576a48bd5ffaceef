"""Makes TRL's trainer, and lets the trainer's process drive it.

| on every rank | on rank 0 alone |
|---|---|
| TRL's trainer with the model | our rollouts as TRL's worker, our transport as TRL's weight transfer |
| after a sync all compute what vLLM sampled | vLLM samples, and the numbers are compared |
| evaluated steps are saved | evaluations are waited for where nothing comes after them |
| SIGTERM ends all ranks at a step's end | steps are told; a failed checkpoint is asked about; waiting ends at SIGTERM |
| the way of an adapter is agreed on | the transport is chosen for it |
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import LoraConfig
from transformers import AttentionInterface, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from gymtrain_trainer.framework import TrainerParts
from gymtrain_trainer.monitoring.run_facts import run_facts
from gymtrain_trainer.trl import internals, settings
from gymtrain_trainer.trl.adapter import agree_on_adapter
from gymtrain_trainer.trl.async_grpo import GroupGRPOTrainer
from gymtrain_trainer.trl.attention import TREE_ATTENTION, TreeAttention
from gymtrain_trainer.trl.export import export_adapter, export_model, export_type
from gymtrain_trainer.trl.gathering import gathered
from gymtrain_trainer.trl.parity import ParityCallback
from gymtrain_trainer.trl.refusals import refusals_named
from gymtrain_trainer.trl.reporter_settings import run_label
from gymtrain_trainer.trl.reporters import Reporters, take_reporters
from gymtrain_trainer.trl.steps import EvaluatedSaver, StepTeller, StopCallback, SyncTeller, agree_among_ranks, steps_of
from gymtrain_trainer.trl.worker import TRLWorker
from gymtrain_trainer.weights import Transport

ELSEWHERE: Final = object()
"""What ranks other than 0 give TRL for a transport. Without one they would agree on TRL's own way to sync an adapter:
in a collective that rank 0, which has a transport, takes no part in."""


def build_trainer(
    arguments: dict[str, Any],
    model: Path,
    *,
    callbacks: Sequence[TrainerCallback],
    lora: Mapping[str, Any] | None = None,
    rollout_worker: Any = None,
    weight_transfer: Any = None,
    steps: settings.StepSettings,
    config_class: type[AsyncGRPOConfig] = AsyncGRPOConfig,
) -> AsyncGRPOTrainer:
    """The trainer with its model loaded. `rollout_worker` and `weight_transfer` count on rank 0 only.

    All settings are the run's, from settings.py; `config_class` makes TRL's config.
    """
    disable_progress_bar()  # a pod's log shows each redraw as text
    config = config_class(**arguments)
    with internals.no_peak_flops_on_cpu(), _sharded(config):
        trainer = GroupGRPOTrainer(
            model=str(model),
            args=config,
            # TRL wants a dataset; the rows come through the rollout worker. With a name of its own for it, datasets
            # needn't pickle half of pyarrow to make one up, which not every combination of releases can.
            train_dataset=Dataset(pyarrow.table({"prompt": [""]}), fingerprint="gymtrain"),
            callbacks=list(callbacks),
            peft_config=LoraConfig(**lora) if lora is not None else None,
            rollout_worker=rollout_worker,
            weight_transfer=weight_transfer,
            steps=steps,
        )
    internals.leave_out_unknown_mfu(trainer)
    internals.stream_weights(trainer, partial(_sent_weights, trainer))
    trainer.remove_callback(PrinterCallback)
    if config.use_cpu or importlib.util.find_spec("kernels") is None:
        # TRL registered its own under this name when it was made; the last registration counts.
        AttentionInterface.register(TREE_ATTENTION, TreeAttention())
    return trainer


@contextlib.contextmanager
def _sharded(config: AsyncGRPOConfig) -> Iterator[None]:
    """Around the loading of the model, where it will be sharded: rank 0 reads for all, and CPUs shard as GPUs do.

    transformers has a way of its own to read once, by the same setting. In 5.19 all ranks read, and then those other
    than 0 throw away what they read and write zeros: as much memory as without it.
    """
    sharding = internals.fsdp_arguments(config)
    with contextlib.ExitStack() as stack:
        if sharding is not None and sharding[settings.LOADING]:
            stack.enter_context(internals.models_read_once(sharding, here=config.process_index == 0))
        if sharding is not None and config.use_cpu and config.world_size > 1:
            stack.enter_context(internals.sharded_on_cpus())
        yield


def _sent_weights(trainer: AsyncGRPOTrainer) -> Iterator[tuple[str, Any]]:
    """What a weight sync sends. A collective where the model is sharded: in the type that the transport sends."""
    known = trainer.weight_transfer.sent_dtype if trainer.accelerator.is_main_process else None
    dtype = broadcast_object_list([known], from_process=0)[0]
    cast = getattr(torch, dtype) if dtype is not None else None
    yield from gathered(internals.sent_parameters(trainer), trainer.accelerator.device, cast)


def make_trainer(parts: TrainerParts) -> "TRLTrainer":
    """The trainer of this rank.

    Raises:
        SettingsError: a constructor refuses the settings.
    """
    context, rank_zero = parts.context, parts.rank_zero
    spec = context.run.spec
    # torch.load never looks at the checksums of torch.save, which writes 3.3 GB/s without them and 1.9 with them.
    torch.serialization.set_crc32_options(False)
    teller: StepTeller | None = None
    worker: TRLWorker | None = None
    if rank_zero is not None:
        teller = StepTeller(rank_zero.callbacks)
        worker = TRLWorker(rank_zero.rollouts)
    with refusals_named(spec):
        trainer = build_trainer(
            settings.trl_arguments(
                spec, folder=context.run_folder, steps=parts.settings.max_steps, run_name=run_label(context)
            ),
            context.paths.model,
            lora=settings.lora_arguments(spec),
            callbacks=[teller] if teller is not None else [],
            rollout_worker=worker,
            weight_transfer=rank_zero.transfer if rank_zero is not None else ELSEWHERE,
            steps=settings.StepSettings.of(spec),
        )
    reporters: Reporters | None = None
    taken = take_reporters(trainer)
    if rank_zero is not None and taken:
        reporters = Reporters(taken, rank_zero.callbacks, parts.stop, run_facts(context), context.run_folder)
        trainer.add_callback(reporters)
    if teller is not None:
        teller.trained = trainer.trained
    # Behind TRL's own callbacks, which sync: a signal that comes while weights are synced ends this step, not the next.
    trainer.add_callback(ParityCallback(trainer, rank_zero.transfer if rank_zero is not None else None))
    if rank_zero is not None:
        trainer.add_callback(SyncTeller(rank_zero.callbacks))
    trainer.add_callback(EvaluatedSaver(spec, parts.settings.sync_every_steps))
    trainer.add_callback(StopCallback(parts.stop, spec.trainer.checkpoint is not None, agree_among_ranks))
    if rank_zero is not None:
        callbacks = rank_zero.callbacks
        internals.tell_saves(
            trainer, callbacks.saving, lambda error: callbacks.on_save_error(steps_of(trainer.state), error)
        )
    return TRLTrainer(
        trainer,
        source=context.paths.model,
        dtype=spec.model.dtype,
        trains_adapter=spec.model.lora is not None,
        reporters=reporters,
        settle_transport=rank_zero.settle_transport if rank_zero is not None else None,
    )


class TRLTrainer:
    """TRL's trainer, as the trainer's process drives it: see `framework.Trainer`."""

    def __init__(
        self,
        trainer: AsyncGRPOTrainer,
        *,
        source: Path,
        dtype: str,
        trains_adapter: bool,
        settle_transport: Callable[[], Transport] | None,
        reporters: Reporters | None = None,
    ) -> None:
        """
        Args:
            trainer: TRL's.
            source: the folder of the model that it was made from.
            dtype: `spec.model.dtype`.
            trains_adapter: it trains an adapter, not all weights.
            settle_transport: on rank 0 only.
            reporters: on rank 0 only, where the run has any.
        """
        self._trainer = trainer
        self._source = source
        self._dtype = dtype
        self._trains_adapter = trains_adapter
        self._reporters = reporters
        self._settle_transport = settle_transport

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        return int(self._trainer.state.global_step)

    @property
    def tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return self._trainer.processing_class

    @property
    def model_config(self) -> Any:
        """transformers' configuration of the model."""
        return self._model.config

    def run(self, checkpoint: Path | None) -> None:
        """Trains to the end."""
        if self._trains_adapter:
            agree_on_adapter(self._trainer, self._settle_transport)
        try:
            self._trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
        except BaseException:
            if self._reporters is not None:
                self._reporters.end(self._trainer.args, self._trainer.state, self._trainer.control, failed=True)
            raise

    def save_checkpoint(self) -> None:
        """Writes a checkpoint of the last step."""
        internals.save_checkpoint(self._trainer)

    def save_model(self, folder: Path) -> None:
        """Writes the model, or the adapter: see export.py."""
        if self._trains_adapter:
            export_adapter(self._trainer, folder)
        else:
            export_model(self._trainer, folder, self._source, export_type(self._dtype, self._source))

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """What TRL sends at a weight sync."""
        return internals.sent_parameters(self._trainer)

    def agree(self, flag: bool) -> bool:
        """True on every rank if `flag` is True on one."""
        return agree_among_ranks(flag)

    def wait_for_everyone(self) -> None:
        """Until every rank is here."""
        self._trainer.accelerator.wait_for_everyone()

    @property
    def _model(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)
