"""`spec.inference`, `trainer`, `rollout`, `gateway` and `weightSync`: the training and what it samples from."""

from typing import Annotated, Literal

from pydantic import Field

from gymtrain_api.spec.base import DECIMAL_PATTERN, SIZE_PATTERN, KubernetesObject, PodSettings, Spec


class Inference(PodSettings):
    """The vLLM servers."""

    replicas: int = Field(1, ge=1, le=256, description="vLLM pods.")
    gpus: int = Field(0, ge=0, le=64, description="GPUs of each pod (nvidia.com/gpu). 0 serves on the CPU.")
    args: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=list,
        max_length=128,
        description="More arguments of vllm serve, such as --max-model-len=16384.",
    )


class Checkpoint(Spec):
    """Where checkpoints and TensorBoard files live: exactly one of claimName and size."""

    claim_name: str | None = Field(
        None, description="Existing PersistentVolumeClaim. The run writes below a folder of its own name."
    )
    size: str | None = Field(
        None,
        pattern=SIZE_PATTERN,
        max_length=32,
        description="Size of a volume that is made for the run; retain says how long it stays.",
    )
    storage_class_name: str | None = Field(
        None, description="StorageClass of the volume that is made; the default where left out."
    )
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"],
        min_length=1,
        max_length=2,
        description="Access modes of the volume that is made. More than one node needs ReadWriteMany.",
    )
    retain: Literal["Keep", "Delete"] = Field(
        "Keep",
        description="What becomes of the volume that is made (claim RUN-checkpoints) when the run is deleted or its "
        "time to live is over. Keep: it stays, final model and all, until somebody deletes it, and the next run of the "
        "same name takes it over. Delete: it goes with the run, and with it what an earlier run of the name left "
        "there. Can be changed at any time.",
    )


class Trainer(PodSettings):
    """The training Job: TRL's AsyncGRPOTrainer under torchrun."""

    nodes: int = Field(1, ge=1, le=1024, description="Pods of the Job, one per node.")
    processes_per_node: int = Field(1, ge=1, le=64, description="Processes that torchrun starts in each pod.")
    gpus: int = Field(0, ge=0, le=64, description="GPUs of each pod (nvidia.com/gpu). 0 trains on the CPU.")
    config: KubernetesObject = Field(
        default_factory=dict,
        description="Settings of TRL's AsyncGRPOConfig under TRL's own names, such as learning_rate, max_steps, "
        "num_generations, per_device_train_batch_size, max_completion_length, save_steps. Checked by preflight.",
    )
    checkpoint: Checkpoint | None = Field(
        None,
        description="Volume of the checkpoints. Left out, they live in the pod: a new attempt starts from step 0. "
        "With a volume, a pod that is asked to end finishes its step and writes a checkpoint, for which it has 30 s: "
        "large models need more, by template.spec.terminationGracePeriodSeconds.",
    )


class Rollout(Spec):
    """How rollouts are collected."""

    mode: Literal["Agent", "Verify"] = Field(
        "Agent",
        description="Agent: POST /run to the row's agent. Verify: generate one answer through the gateway, then POST "
        "/verify to the agent's resources server; no agent pods are made. For environments of one turn.",
    )
    max_concurrent: int = Field(64, ge=1, le=65536, description="Rollouts in flight at once.")
    timeout_seconds: int = Field(1800, ge=1, le=86400, description="Deadline of one rollout (one POST /run).")
    verify_timeout_seconds: int = Field(300, ge=1, le=86400, description="Deadline of one POST /verify in mode Verify.")
    mask_truncated: bool = Field(
        False,
        description="Leave completions that hit the token limit out of the loss; their rewards still count for the "
        "group's mean.",
    )
    max_attempts: int = Field(3, ge=1, le=100, description="Tries of one rollout before its group is dropped.")
    max_staleness: int = Field(
        4, ge=0, le=1024, description="Weight versions that a sample may be behind the trainer before it is dropped."
    )
    stall_timeout_seconds: int = Field(
        1800,
        ge=10,
        le=86400,
        description="Time without one usable rollout group after which the attempt fails. Until then the run waits "
        "and says so in the Progressing condition.",
    )


class Gateway(PodSettings):
    """The gateway: OpenAI routes in front of all vLLM pods, with exact token ids across turns."""

    replicas: int = Field(1, ge=1, le=64, description="Gateway pods.")
    timeout_seconds: int = Field(
        600, ge=1, le=86400, description="Deadline of one model call, with waiting and tries on other vLLM pods."
    )
    max_in_flight: int = Field(
        256, ge=1, le=65536, description="Model calls that one vLLM pod works on at once; others wait in the gateway."
    )


class WeightSync(Spec):
    """How the trainer's weights reach vLLM."""

    transport: Literal["Auto", "NCCL", "LoRAFilesystem", "HTTPFull", "None"] = Field(
        "Auto",
        description="Auto chooses by what the vLLM servers prove to offer. NCCL: vLLM's own broadcast between GPUs. "
        "LoRAFilesystem: adapters on the checkpoint volume (with model.lora). HTTPFull: every vLLM pod fetches all "
        "weights from the trainer over HTTP, verifies them, then loads them. None: vLLM keeps the weights it started "
        "with, for evaluation only.",
    )
    timeout_seconds: int = Field(600, ge=1, le=86400, description="Deadline of one weight sync.")
    parity_every_syncs: int = Field(
        50,
        ge=0,
        le=1_000_000,
        description="After the first sync and after each further this many, the trainer recomputes log-probabilities "
        "that vLLM sampled. 0: after the first one only.",
    )
    parity_threshold: str | None = Field(
        None,
        pattern=DECIMAL_PATTERN,
        max_length=16,
        description="Mean difference of those log-probabilities above which the run fails (decimal). Left out: 0.02 "
        "for float32 weights in vLLM, 0.1 for others.",
    )
