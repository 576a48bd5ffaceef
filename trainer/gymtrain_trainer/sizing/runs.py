"""The sizing of a GymTrainingRun: its settings in TRL's names, and vLLM's arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gymtrain_api.runs import InvalidRunError, parse_spec
from gymtrain_api.spec import SIZE_PATTERN, GymTrainingRunSpec
from gymtrain_api.spec.base import bytes_of
from gymtrain_api.transports import adapters_held, lora_rank, planned
from gymtrain_api.vllm_arguments import last_of, max_model_len, parallel_sizes
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.sizing.serving import UTILIZATION, Serving
from gymtrain_trainer.sizing.shapes import FULL, HALF, ModelShape, built_in
from gymtrain_trainer.sizing.training import Adapter, Training

_PEFT_DEFAULT = ("q_proj", "v_proj")  # of the models whose shapes are known (peft 0.21)
# TRL's defaults, and ours where the trainer sets others (trl/settings.py)
_BATCH = 8
_TOKEN_BUDGET = 0
_SIZE = re.compile(SIZE_PATTERN)
# Keys of fsdp_config that change what is computed, by the values of which it is.
_SHARDING = {"cpu_offload": False, "reshard_after_forward": True, "state_dict_type": "SHARDED_STATE_DICT"}
_KEPT = 2  # our default of save_total_limit


@dataclass(frozen=True)
class Sizing:
    """What is computed.

    Attributes:
        serving: None where vLLM has no GPUs.
        replicas: vLLM servers.
        host_memory: bytes of a trainer pod; None where nobody says.
        checkpoint_size: bytes of the volume; None where it isn't the run's.
    """

    training: Training
    serving: Serving | None
    replicas: int = 1
    host_memory: int | None = None
    checkpoint_size: int | None = None


def read_run(path: Path) -> GymTrainingRunSpec:
    """The spec of the one GymTrainingRun in a file, which may have other objects beside it.

    Raises:
        SettingsError: there is no such file or run in it, or several, or its spec doesn't fit the types.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} is unreadable: {error}") from error
    runs = [one for one in documents if isinstance(one, dict) and one.get("kind") == "GymTrainingRun"]
    if len(runs) != 1:
        raise SettingsError(f"{path} has {len(runs)} objects of kind GymTrainingRun; it should have one")
    try:
        return parse_spec(runs[0].get("spec") or {})
    except InvalidRunError as error:
        raise SettingsError(f"{path}: {error}") from error


def sizing_of(
    spec: GymTrainingRunSpec, shape: ModelShape | None, gpu_memory: float, vllm_gpu_memory: float | None = None
) -> Sizing:
    """What a run takes.

    Args:
        spec: of the run.
        shape: of its model; None: the source names a built-in one.
        gpu_memory: GiB of a training GPU.
        vllm_gpu_memory: GiB of a GPU of vLLM; None: the same.

    Raises:
        SettingsError: the model is none of the built-in ones, or the run has a setting that isn't computed.
    """
    if spec.trainer.command is not None:
        raise SettingsError("spec.trainer.command is another trainer: what it takes isn't computed")
    shape = shape or built_in(spec.model.source)
    if shape is None:
        raise SettingsError(f"{spec.model.source} is none of the built-in shapes: name a folder with its config.json")
    length = _length(spec, shape)
    training = _training(spec, shape, length, gpu_memory)
    checkpoint = spec.trainer.checkpoint
    return Sizing(
        training=training,
        serving=_serving(spec, training, vllm_gpu_memory or gpu_memory) if spec.inference.gpus else None,
        replicas=spec.inference.replicas,
        host_memory=_memory(spec.trainer.resources),
        checkpoint_size=bytes_of(checkpoint.size) if checkpoint is not None and checkpoint.size else None,
    )


def _length(spec: GymTrainingRunSpec, shape: ModelShape) -> int:
    """Tokens of the longest sample: prompt and answers have no more than vLLM serves."""
    asked = max_model_len(spec.inference.args)
    return min(asked[1], shape.context) if asked is not None else shape.context


def _training(spec: GymTrainingRunSpec, shape: ModelShape, length: int, gpu_memory: float) -> Training:
    config, trainer = spec.trainer.config, spec.trainer
    if trainer.gpus == 0:
        raise SettingsError("spec.trainer.gpus is 0: training on a CPU isn't computed")
    if trainer.processes_per_node > trainer.gpus:
        raise SettingsError(
            f"spec.trainer.processesPerNode is {trainer.processes_per_node}, with {trainer.gpus} GPUs: each needs one"
        )
    if config.get("bf16") is False and not config.get("fp16"):
        raise SettingsError("spec.trainer.config.bf16 is false: training in float32 isn't computed")
    sharding = config.get("fsdp_config") if isinstance(config.get("fsdp_config"), Mapping) else {}
    assert isinstance(sharding, Mapping)
    for key, usual in _SHARDING.items():
        if sharding.get(key, usual) != usual:
            raise SettingsError(f"spec.trainer.config.fsdp_config.{key}: {sharding[key]} isn't computed")
    budget = _whole(config.get("token_budget"), _TOKEN_BUDGET)
    return Training(
        shape=shape,
        nodes=trainer.nodes,
        gpus=trainer.processes_per_node,
        gpu_memory=gpu_memory,
        length=length,
        tokens=budget or _whole(config.get("per_device_train_batch_size"), _BATCH) * length,
        checkpointing=bool(config.get("gradient_checkpointing", True) or sharding.get("activation_checkpointing")),
        sharded=bool(config.get("fsdp")) and trainer.nodes * trainer.processes_per_node > 1,
        adapter=_adapter(spec),
        transport=planned(spec),
        kept_checkpoints=_whole(config.get("save_total_limit"), _KEPT) + _best(spec),
    )


def _best(spec: GymTrainingRunSpec) -> int:
    """Checkpoints that are kept beside those that rotate."""
    return 1 if spec.evaluates is not None and spec.evaluates.keep_best else 0


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _adapter(spec: GymTrainingRunSpec) -> Adapter | None:
    lora = spec.model.lora
    if lora is None:
        return None
    if lora.get("modules_to_save"):
        raise SettingsError("spec.model.lora.modules_to_save isn't computed")
    targets = lora.get("target_modules", list(_PEFT_DEFAULT))
    if targets == "all-linear":
        return Adapter(lora_rank(lora))
    if not isinstance(targets, list):
        raise SettingsError(f"spec.model.lora.target_modules: {targets} isn't computed; all-linear and a list are")
    return Adapter(lora_rank(lora), tuple(map(str, targets)))


def _serving(spec: GymTrainingRunSpec, training: Training, gpu_memory: float) -> Serving:
    arguments = spec.inference.args
    held = adapters_held(spec.rollout.max_staleness) if training.transport == "LoRAFilesystem" else 0
    tensor, pipeline = parallel_sizes(arguments, spec.inference.nodes, spec.inference.gpus)
    return Serving(
        shape=training.shape,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        gpu_memory=gpu_memory,
        utilization=_number(arguments, "--gpu-memory-utilization", UTILIZATION),
        length=training.length,
        number=FULL if spec.model.dtype == "float32" else HALF,
        adapters=held * HALF * training.trained,
        syncs=training.transport == "NCCL",
    )


def _number(arguments: list[str], option: str, default: float) -> float:
    found = last_of(arguments, option)
    try:
        return float(found[1]) if found is not None and found[1] is not None else default
    except ValueError:
        raise SettingsError(f"spec.inference.args: {option} is no number: {found and found[1]}") from None


def _memory(resources: dict[str, Any] | None) -> int | None:
    """The limit of a trainer pod, else what it asks for."""
    for kind in ("limits", "requests"):
        size = ((resources or {}).get(kind) or {}).get("memory")
        if size is not None and _SIZE.match(str(size)):
            return bytes_of(str(size))
    return None
