"""Builds the trainer as its pods will, on torch's meta device, where tensors have shapes and no data.

The same constructors of TRL, transformers, accelerate and peft see the same settings and the model's own config, all
layers of it; so what they refuse ends in preflight. It costs half a second for a model of 8 B parameters, after imports
that the check of the settings' types needs anyway, and no memory to speak of. What is not as in a pod:

- parameters have no data, and the CPU stands in for the GPUs;
- where there are several processes, this one is the first of a group of one;
- fp16, which needs a GPU, is replaced by bf16.

docs/decisions/0020-preflight-builds-the-trainer.md says why this and not a list of checks.
"""

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import AttentionInterface
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.trl import internals, settings
from gymtrain_trainer.trl.attention import TREE_ATTENTION, UnsupportedAttentionError, check_supported
from gymtrain_trainer.trl.refusals import is_refusal, one_line, place_of
from gymtrain_trainer.trl.trainer import build_trainer

_MODEL = "spec.model.source"
_TOKENS = 8  # of the row that is sent through the model


class _MetaConfig(AsyncGRPOConfig):  # type: ignore[misc]  # TRL's classes have no types here
    """Parameters on the meta device can't be moved anywhere; transformers documents this property for subclasses."""

    @property
    def place_model_on_device(self) -> bool:
        return False


class _Worker:
    """What TRL's constructor asks of a rollout worker."""

    rollout_buffer = None


class _Attention:
    """Stands in for the attention that the pods use: notes that it was asked, refuses what they would refuse."""

    def __init__(self, *, own: bool, varlen: bool) -> None:
        self.calls = 0
        self._own, self._varlen = own, varlen

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        self.calls += 1
        if self._own:
            check_supported(query, value, softcap, varlen=self._varlen)
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1]), None


def rehearse(spec: GymTrainingRunSpec, model: Path) -> tuple[list[Finding], list[Finding]]:
    """Findings and warnings of building the trainer for the model in a folder, of which config and tokenizer are read.

    Only for processes that don't train: attention stays replaced.
    """
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            _environment_kept(),
            _first_process(spec),
            internals.models_on_meta(),
        ):
            trainer = _build(spec, model, Path(folder))
            findings = _check_attention(trainer, spec)
    except Exception as error:
        said = f"{type(error).__name__}: {one_line(error)}"
        if is_refusal(error) and "meta" not in said:
            return [Finding(where=place_of(error, spec), message=f"the trainer can't be built this way: {said}")], []
        where = place_of(error, spec)
        return [], [Finding(where=where, message=f"preflight could not build the trainer without a GPU: {said}")]
    return findings, []


def _build(spec: GymTrainingRunSpec, model: Path, folder: Path) -> AsyncGRPOTrainer:
    steps = settings.max_steps(spec, None)
    arguments = settings.trl_arguments(spec, folder=folder, steps=steps) | {"use_cpu": True, "tf32": None}
    arguments.pop("ddp_backend", None)
    if arguments.get("fp16"):
        arguments |= {"fp16": False, "bf16": True}
    trainer = build_trainer(
        arguments,
        model,
        callbacks=[],
        lora=settings.lora_arguments(spec),
        rollout_worker=_Worker(),
        weight_transfer=object(),
        steps=settings.StepSettings.of(spec),
        config_class=_MetaConfig,
    )
    trainer.create_optimizer_and_scheduler(steps or 1)
    sharding = internals.fsdp_arguments(trainer.args)
    if sharding is not None:  # as accelerate does when it shards the model
        FullyShardedDataParallelPlugin(**sharding).set_auto_wrap_policy(trainer.model)
    return trainer


def _check_attention(trainer: AsyncGRPOTrainer, spec: GymTrainingRunSpec) -> list[Finding]:
    """Sends one row through the model, to see what its layers ask of the attention."""
    half = bool(trainer.args.bf16 or trainer.args.fp16)
    on_gpu = spec.trainer.gpus > 0
    asked = _Attention(own=not on_gpu or importlib.util.find_spec("kernels") is None, varlen=on_gpu and half)
    AttentionInterface.register(TREE_ATTENTION, asked)
    row = torch.arange(_TOKENS, device="meta").unsqueeze(0)
    tree = torch.arange(_TOKENS)
    name = type(trainer.accelerator.unwrap_model(trainer.model)).__name__
    try:
        with torch.no_grad():
            trainer.model(
                input_ids=torch.zeros_like(row),
                position_ids=row,
                attention_mask=torch.ones_like(row),  # without one, transformers looks for packed rows in the data
                use_cache=False,
                tree_kv_index=tree,
                tree_cu_seqlens_q=tree[:2],
                tree_cu_seqlens_k=tree[:2],
                tree_max_seqlen_q=_TOKENS,
                tree_max_seqlen_k=_TOKENS,
            )
    except UnsupportedAttentionError as error:
        return [Finding(where=_MODEL, message=f"{name} can't be trained here: {error}")]
    except (RuntimeError, NotImplementedError):
        return []  # a layer that looks at its data, as many mixtures of experts do: nothing is known
    layers = trainer.model.config.get_text_config().num_hidden_layers
    if asked.calls >= layers:
        return []
    message = (
        f"{name} can't be trained here: {layers - asked.calls} of its {layers} layers don't compute attention through "
        "transformers' attention interface, so the samples that TRL packs into one row would see each other"
    )
    return [Finding(where=_MODEL, message=message)]


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """transformers and accelerate leave settings of FSDP in the environment, and take them for a later trainer's."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _first_process(spec: GymTrainingRunSpec) -> Iterator[None]:
    """A process group of one where the run has several processes: FSDP is refused without any."""
    if spec.trainer.nodes * spec.trainer.processes_per_node == 1:
        yield
        return
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = "0"  # by which accelerate knows of the group
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        torch.distributed.destroy_process_group()
