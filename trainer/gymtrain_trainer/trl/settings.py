"""`spec.trainer.config` in TRL's names: what it means to the rest of the trainer, and the arguments that TRL gets.

Pure, without torch. The arguments are those of AsyncGRPOConfig (TRL 1.16), and of peft's LoraConfig.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymtrain_api.sampling import temperature_of
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.framework import TrainingSettings
from gymtrain_trainer.trl.advantages import LOSSES, SCALES, LossSettings
from gymtrain_trainer.trl.correction import Correction
from gymtrain_trainer.trl.reporter_settings import PROJECT

# Keys that other fields of the run set, by what to use instead.
OWNED_KEYS = {
    "vllm_server_base_url": "the run brings its own vLLM servers, see spec.inference",
    "vllm_server_timeout": "use spec.startupDeadlineSeconds",
    "request_timeout": "use spec.rollout.timeoutSeconds",
    "weight_sync_timeout": "use spec.weightSync.timeoutSeconds",
    "max_staleness": "use spec.rollout.maxStaleness",
    "max_inflight_tasks": "use spec.rollout.maxConcurrent",
    "queue_maxsize": "it follows from the batch and spec.rollout.maxStaleness",
    "heartbeat_stale_after_s": "use spec.rollout.stallTimeoutSeconds",
    "output_dir": "use spec.trainer.checkpoint",
    "resume_from_checkpoint": "a new attempt resumes from the last checkpoint by itself; to resume from another run's, "
    "use spec.resumeFrom",
    "use_cpu": "it follows from spec.trainer.gpus",
    "dtype": "use spec.model.dtype for vLLM; the trainer keeps float32 weights",
    "remove_unused_columns": "the data never passes through TRL",
    "accelerator_config": "TRL's asynchronous trainer sets it",
    "chat_template_kwargs": "set it on the policy model server: spec.gym.overrides.policy_model."
    "responses_api_models.vllm_model.chat_template_kwargs",
    "max_tool_calling_iterations": "set max_steps of the agent in spec.gym.overrides",
    "log_completions": "the trainer serves its last samples at /samples",
    "num_completions_to_print": "the trainer serves its last samples at /samples",
    **dict.fromkeys(
        ("eval_strategy", "eval_steps", "do_eval"),
        "use spec.data.validation, and spec.evaluation.everySteps: the run evaluates in vLLM",
    ),
    "eval_on_start": "use spec.evaluation.atStart",
    "eval_delay": "use spec.evaluation.everySteps and atStart",
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_accumulation_steps", "num_generations_eval"),
        "use spec.evaluation.maxConcurrent and samplesPerTask",
    ),
    **dict.fromkeys(
        ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        "use spec.evaluation.keepBest, which keeps the best checkpoint in the folder best",
    ),
    **dict.fromkeys(
        (
            "prediction_loss_only",
            "batch_eval_metrics",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "include_for_metrics",
            "bf16_full_eval",
            "fp16_full_eval",
        ),
        "it is about evaluation in the trainer, and the run evaluates in vLLM: see spec.evaluation",
    ),
    "push_to_hub": "use spec.trainer.push",
    "use_liger_kernel": "TRL's asynchronous trainer does not support it",
}
# Sampling that TRL's config has beside the temperature, by the values with which it is what the trainer scores.
NEUTRAL_SAMPLING: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (None, 0),
    "repetition_penalty": (1,),
}

# GRPOConfig's settings of the loss that AsyncGRPOConfig lacks, by their values here.
LOSS_KEYS: dict[str, tuple[str, ...]] = {"scale_rewards": SCALES, "loss_type": LOSSES}

LOADING = "cpu_ram_efficient_loading"
"""Key of `fsdp_config`: whether one rank reads the weights for all."""

SAVING = "state_dict_type"
"""Key of `fsdp_config`: whether checkpoints are sharded."""

# TRL's defaults
_GENERATIONS = 8
_BATCH = 8
_COMPLETION_TOKENS = 2048
_SYNC_STEPS = 1
_FORK_THRESHOLD = 1024  # tokens
_SEED = 42


@dataclass(frozen=True)
class Batch:
    """The arithmetic of one optimizer step."""

    per_device: int
    accumulation: int
    processes: int
    num_generations: int
    token_budget: int  # 0: batches of a fixed number of samples

    @property
    def samples_per_step(self) -> int:
        """Rollouts of one optimizer step, where `token_budget` is 0. TRL calls them samples; one may have several."""
        return self.per_device * self.accumulation * self.processes

    @property
    def groups_per_step(self) -> int:
        """Groups of one optimizer step, where `token_budget` is 0."""
        return max(1, self.samples_per_step // self.num_generations)

    @classmethod
    def of(cls, spec: GymTrainingRunSpec) -> "Batch":
        """The run's batch. Values of a wrong type count as TRL's defaults: preflight reports those."""
        return cls(
            per_device=_whole(spec, "per_device_train_batch_size", _BATCH),
            accumulation=_whole(spec, "gradient_accumulation_steps", 1),
            processes=spec.trainer.nodes * spec.trainer.processes_per_node,
            num_generations=_whole(spec, "num_generations", _GENERATIONS),
            token_budget=_whole(spec, "token_budget", 0),
        )


def _whole(spec: GymTrainingRunSpec, key: str, default: int, least: int = 1) -> int:
    value = spec.trainer.config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else default


def training_settings(spec: GymTrainingRunSpec, rows: int | None) -> TrainingSettings:
    """What the rest of the trainer has to know; see `Framework.settings`."""
    batch, steps = Batch.of(spec), max_steps(spec, rows) if not spec.evaluates_only else None
    if steps is None and rows is not None and not spec.evaluates_only:
        raise SettingsError("spec.trainer.config sets neither max_steps nor num_train_epochs")
    return TrainingSettings(
        group_size=batch.num_generations,
        groups_per_step=None if batch.token_budget else batch.groups_per_step,
        max_sample_tokens=batch.token_budget or None,
        max_steps=steps,
        sync_every_steps=_whole(spec, "weight_sync_steps", _SYNC_STEPS),
        fork_threshold=_whole(spec, "fork_threshold_tokens", _FORK_THRESHOLD, least=0),
        temperature=temperature_of(spec.trainer.config),
        max_completion_tokens=max_completion_length(spec),
        seed=_whole(spec, "seed", _SEED, least=0),
        checkpoint_kind=_checkpoint_kind(spec),
    )


def _checkpoint_kind(spec: GymTrainingRunSpec) -> str:
    config = spec.trainer.config
    # On a CPU, a process that is alone doesn't shard.
    if not config.get("fsdp") or (spec.trainer.gpus == 0 and Batch.of(spec).processes == 1):
        return "without trainer.config.fsdp"
    sharding = _sharding(config.get("fsdp_config"), only_model=bool(config.get("save_only_model")))
    if not isinstance(sharding, dict):
        return ""
    found = sharding.get(SAVING, sharding.get(f"fsdp_{SAVING}", "FULL_STATE_DICT"))
    return f"with trainer.config.fsdp and {SAVING}: {found}"


def max_steps(spec: GymTrainingRunSpec, rows: int | None) -> int | None:
    """Optimizer steps of the run: `max_steps`, else what `num_train_epochs` passes over `rows` rows make.

    None where neither is set, or where the rows aren't known yet.
    """
    config = spec.trainer.config
    steps = config.get("max_steps")
    if isinstance(steps, int) and steps > 0:
        return steps
    epochs = config.get("num_train_epochs")
    if not isinstance(epochs, int | float) or rows is None:
        return None
    batch = Batch.of(spec)
    return max(1, math.ceil(epochs * rows / batch.groups_per_step))


def with_an_end(spec: GymTrainingRunSpec) -> GymTrainingRunSpec:
    """The spec of a run that trains nothing, as one of a step, by which its other settings can be checked."""
    trainer = spec.trainer.model_copy(update={"config": {"max_steps": 1} | spec.trainer.config})
    return spec.model_copy(update={"trainer": trainer})


def max_completion_length(spec: GymTrainingRunSpec) -> int:
    """Tokens that the policy may write in one call. A wrong type counts as TRL's default: preflight reports it."""
    value = spec.trainer.config.get("max_completion_length")
    return value if isinstance(value, int) and not isinstance(value, bool) else _COMPLETION_TOKENS


def trl_arguments(
    spec: GymTrainingRunSpec, *, folder: Path, steps: int | None, run_name: str | None = None
) -> dict[str, Any]:
    """Keyword arguments for AsyncGRPOConfig: our defaults, then the user's settings, then what the run decides.

    `folder`: the run's own below the checkpoint volume; `steps`: from `max_steps()`; `run_name`: for trackers.
    """
    on_cpu = spec.trainer.gpus == 0
    defaults: dict[str, Any] = {
        # One optimizer step is per_device_train_batch_size x processes x accumulation samples, as people expect.
        # With a token budget, TRL's own default, the samples of a step depend on their length.
        "token_budget": 0,
        "report_to": ["tensorboard"],
        "run_name": run_name,
        "project": PROJECT,
        "disable_tqdm": True,
        "save_strategy": "steps" if spec.trainer.checkpoint else "no",
        "save_total_limit": 2,
        # Ranks other than 0 wait in a collective while rank 0 waits for servers, rollouts, a sync or an evaluation.
        "ddp_timeout": collective_timeout(spec),
    }
    if on_cpu:
        defaults |= {"bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    ours = {*OWNED_KEYS, *LOSS_KEYS}
    given = {key: value for key, value in spec.trainer.config.items() if key not in ours}
    if given.get("fsdp"):
        given["fsdp_config"] = _sharding(given.get("fsdp_config"), only_model=bool(given.get("save_only_model")))
    decided: dict[str, Any] = {
        "output_dir": str(folder),
        "max_staleness": spec.rollout.max_staleness,
        "max_inflight_tasks": spec.rollout.max_concurrent,
        "request_timeout": spec.rollout.timeout_seconds,
        "weight_sync_timeout": spec.weight_sync.timeout_seconds,
        "use_cpu": on_cpu,
        "dtype": "float32",
        # A step's micro-batches are one item of our loader, since there are more of them where rollouts forked.
        "gradient_accumulation_steps": 1,
    }
    if steps is not None:
        decided["max_steps"] = steps
    return defaults | given | decided


def collective_timeout(spec: GymTrainingRunSpec) -> int:
    """Seconds that other ranks may wait for rank 0, which has limits of its own for all that it waits for."""
    evaluation = spec.evaluates.timeout_seconds if spec.evaluates is not None else 0
    waits = spec.startup_deadline_seconds + spec.rollout.stall_timeout_seconds + spec.weight_sync.timeout_seconds
    return waits + evaluation + 600


def _sharding(given: Any, *, only_model: bool) -> Any:
    """`fsdp_config` with our defaults: only rank 0 reads the weights, and sends each rank its share; each rank writes
    its share of a checkpoint.

    Else rank 0 gathers each checkpoint in its memory, and writes the model twice. transformers refuses checkpoints of
    the model alone (`only_model`) if they are sharded.
    """
    if not isinstance(given, dict | None):  # the path of a file, which transformers reads
        return given
    given = given or {}
    taken = {key.removeprefix("fsdp_") for key in given}  # transformers takes keys both ways
    defaults = {LOADING: True} if only_model else {LOADING: True, SAVING: "SHARDED_STATE_DICT"}
    return {key: value for key, value in defaults.items() if key not in taken} | given


@dataclass(frozen=True)
class StepSettings:
    """What makes a step of groups, and shapes its loss beside TRL's own settings. `records`: what it makes of each
    sample is recorded; `token_records`: and of each token."""

    batch: Batch
    loss: LossSettings = field(default_factory=LossSettings)
    correction: Correction = field(default_factory=Correction)
    records: bool = False
    token_records: bool = False

    @classmethod
    def of(cls, spec: GymTrainingRunSpec) -> "StepSettings":
        """The run's. Unknown values count as defaults: preflight reports them."""
        config, default, given = spec.trainer.config, LossSettings(), spec.rollout.correction
        scale, kind = config.get("scale_rewards"), config.get("loss_type")
        loss = LossSettings(
            scale_rewards=next((value for value in SCALES if value == scale), default.scale_rewards),
            loss_type=next((value for value in LOSSES if value == kind), default.loss_type),
            max_completion_length=max_completion_length(spec),
        )
        correction = Correction(given.mode, float(given.min_ratio), float(given.max_ratio))
        records = spec.trainer.records
        return cls(Batch.of(spec), loss, correction, records.on, records.samples != "None")


def lora_arguments(spec: GymTrainingRunSpec) -> dict[str, Any] | None:
    """Keyword arguments for peft's LoraConfig; None trains all weights."""
    if spec.model.lora is None:
        return None
    return {"task_type": "CAUSAL_LM", **spec.model.lora}
