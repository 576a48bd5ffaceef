"""`spec.inference`, `trainer`, `rollout`, `gateway` and `weightSync`: training, and the servers it samples from."""

from typing import Annotated, Literal

from pydantic import Field

from gymtrain_api.sources import PUSH_PATTERN
from gymtrain_api.spec.base import (
    DECIMAL_PATTERN,
    GPU_RESOURCE_PATTERN,
    SIZE_PATTERN,
    KubernetesObject,
    PodSettings,
    SecretRef,
    Spec,
    bytes_of,
)

GPU_RESOURCE_NAME = (
    "Extended resource that the GPUs are requested by, such as amd.com/gpu or nvidia.com/mig-1g.10gb. Empty: none, "
    "since the template's resourceClaims bring the GPUs (DRA). Defaults to the cluster's, or nvidia.com/gpu."
)


class CompileCache(Spec):
    """Where what vLLM compiles is kept, with exactly one of claimName and size."""

    claim_name: str | None = Field(
        None,
        description="Existing PersistentVolumeClaim, which runs can share. vLLM's pods write to its folder "
        "gymtrain-compile-cache, and load code from there: whoever can write to the claim can run code in them.",
    )
    size: str | None = Field(
        None,
        pattern=SIZE_PATTERN,
        max_length=32,
        description="Size of a new volume for the run, which is deleted with it (claim RUN-compile-cache).",
    )
    storage_class_name: str | None = Field(
        None, description="StorageClass of the new volume. Defaults to the cluster's default."
    )
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"],
        min_length=1,
        max_length=2,
        description="Access modes of the new volume. vLLM pods on more than one node need ReadWriteMany.",
    )


class Inference(PodSettings):
    """The vLLM servers."""

    replicas: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of vLLM servers. Can change at any time, and is what kubectl scale and autoscalers set.",
    )
    min_replicas: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Fewest vLLM servers that a run in a queue of Kueue may start with if there is no quota for all "
        "replicas (Kueue's partial admission). It then keeps the number that was admitted until it is queued again. "
        "Without it, a run waits until there is quota for all. Only with nodes: 1.",
    )
    nodes: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods per server, one per node, for a model that is too large for the GPUs of one node. More than "
        "1 needs LeaderWorkerSet (LWS) in the cluster. A server is then a group of pods: the first serves, the others "
        "are its workers. It has nodes x gpus workers: by default tensor parallel within a pod and pipeline parallel "
        "across pods (on the CPU one a pod, tensor parallel). args can have other sizes with the same product.",
    )
    gpus: int = Field(0, ge=0, le=64, description="GPUs per pod. 0 serves on the CPU.")
    gpu_resource_name: str | None = Field(
        None,
        pattern=GPU_RESOURCE_PATTERN,
        max_length=317,
        description=GPU_RESOURCE_NAME,
    )
    args: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=list,
        max_length=128,
        description="Additional arguments of vllm serve, such as --max-model-len=16384.",
    )
    compile_cache: CompileCache | None = Field(
        None,
        description="Volume for what vLLM compiles (torch.compile, Triton). A pod loads it at its start instead of "
        "compiling the same again, and adds what is new once it serves. Without it, each new pod compiles.",
    )


class Checkpoint(Spec):
    """Where checkpoints and TensorBoard files are stored, with exactly one of claimName and size."""

    claim_name: str | None = Field(
        None, description="Existing PersistentVolumeClaim. The run writes to a folder with its own name."
    )
    size: str | None = Field(
        None,
        pattern=SIZE_PATTERN,
        max_length=32,
        description="Size of a new volume for the run; retain says how long it stays.",
    )
    storage_class_name: str | None = Field(
        None, description="StorageClass of the new volume. Defaults to the cluster's default."
    )
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"],
        min_length=1,
        max_length=2,
        description="Access modes of the new volume. More than one node needs ReadWriteMany.",
    )
    retain: Literal["Keep", "Delete"] = Field(
        "Keep",
        description="What happens to the new volume (claim RUN-checkpoints) when the run is deleted or its time to "
        "live is over. Keep: it stays, including the final model, until someone deletes it; the next run of the same "
        "name takes it over. Delete: it is deleted with the run, including what an earlier run of that name left "
        "there. Can change at any time.",
    )


class Records(Spec):
    """What each step trained on, and what was said, as files in the folders records and rollouts of the run's
    checkpoints: one file a step."""

    samples: Literal["None", "Sampled", "All"] = Field(
        "None",
        description="Which samples are written, with tokens, log-probabilities, weight versions, rewards, advantages "
        "and ratios. Sampled: those of groupsPerStep groups of each step, drawn at random. Needs checkpoint, the "
        "volume that they are written to.",
    )
    rollouts: Literal["None", "Sampled", "All"] = Field(
        "None",
        description="Which rollouts are written, with messages, tool calls and their results, rewards, times and "
        "failures: those that a step trained on, those that were dropped or lost, and those of evaluations. Sampled: "
        "those of groupsPerStep groups of each step, as many others, and those of as many tasks of each evaluation. "
        "gymtrain report makes a page of them. Needs checkpoint.",
    )
    groups_per_step: int = Field(1, ge=1, le=65536, description="Groups of each step that Sampled writes.")
    format: Literal["Parquet", "JSONL"] = Field(
        "Parquet",
        description="Format of the files. JSONL needs no library to read, but about five times the space, and time of "
        "the training process: use it for small runs.",
    )
    max_size: str = Field(
        "1Gi",
        pattern=SIZE_PATTERN,
        max_length=32,
        description="Limit of the size of all files of samples together, and again of all files of rollouts. "
        "Beyond it, the files of the oldest steps are removed.",
    )

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return self.samples != "None" or self.rollouts != "None"

    @property
    def max_bytes(self) -> int:
        """`max_size` in bytes."""
        return bytes_of(self.max_size)


class Push(Spec):
    """Where the final model is uploaded to, beside the checkpoint volume."""

    to: str = Field(
        pattern=PUSH_PATTERN,
        max_length=512,
        description="hf://ORG/NAME for a repository on the Hugging Face hub, which is made if it doesn't exist, or "
        "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH.",
    )
    secret: SecretRef | None = Field(
        None,
        description="Secret whose keys are environment variables of the upload alone, such as HF_TOKEN, "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AZURE_STORAGE_CONNECTION_STRING.",
    )
    private: bool = Field(True, description="Whether a repository that is made on the hub is private.")
    revision: str | None = Field(
        None, min_length=1, max_length=128, description="Branch on the hub. Defaults to the repository's own."
    )
    timeout_seconds: int = Field(3600, ge=1, le=86400, description="Deadline of the upload, with all tries.")


type FrameworkName = Literal["TRL"]


class Trainer(PodSettings):
    """The training Job: gymtrain's trainer with a framework, or a command of the user's in an image of the user's."""

    framework: FrameworkName | None = Field(
        None,
        description="Training framework of gymtrain's trainer. TRL: its AsyncGRPOTrainer under torchrun. Defaults to "
        "TRL, unless command is set.",
    )
    command: list[Annotated[str, Field(min_length=1, max_length=4096)]] | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Command of another trainer, in place of framework: what the container of image starts, without a "
        "shell. $(NAME) stands for a variable of its environment, such as $(GYMTRAIN_NODES), as in any container. The "
        "command follows the wiring contract (docs/own-trainer.md). Fields that say how to train are then for it to "
        "read: config, processesPerNode, model.lora, rollout, evaluation, resumeFrom.",
    )
    nodes: int = Field(1, ge=1, le=1024, description="Number of pods of the Job, one per node.")
    processes_per_node: int = Field(1, ge=1, le=64, description="Processes that torchrun starts in each pod.")
    gpus: int = Field(0, ge=0, le=64, description="GPUs per pod. 0 trains on the CPU.")
    gpu_resource_name: str | None = Field(
        None,
        pattern=GPU_RESOURCE_PATTERN,
        max_length=317,
        description=GPU_RESOURCE_NAME,
    )
    config: KubernetesObject = Field(
        default_factory=dict,
        description="Settings of TRL's AsyncGRPOConfig, under TRL's own names, such as learning_rate, max_steps, "
        "num_generations, per_device_train_batch_size, max_completion_length, save_steps. Preflight checks them. With "
        "command, whatever it reads; the gateway samples at temperature (1, where it is left out) in either case.",
    )
    env: list[KubernetesObject] = Field(
        default_factory=list,
        max_length=256,
        description="Environment of the trainer's container (EnvVar; secrets by valueFrom.secretKeyRef), such as keys "
        "of the experiment trackers in config.report_to: WANDB_API_KEY, MLFLOW_TRACKING_URI, HF_TOKEN.",
    )
    checkpoint: Checkpoint | None = Field(
        None,
        description="Volume for the checkpoints. Without it, they stay in the pod, and a new attempt starts from step "
        "0. With a volume, a pod that is asked to end finishes its step and writes a checkpoint. It has 30 s for "
        "this; for large models, set a longer template.spec.terminationGracePeriodSeconds.",
    )
    push: Push | None = Field(
        None,
        description="Where the final model is uploaded to when training is complete. An upload that fails doesn't fail "
        "the run: the model stays on the checkpoint volume. Needs checkpoint.",
    )
    records: Records = Field(
        default_factory=Records,
        description="What each step trained on, as files in the folder records of the run's checkpoints.",
    )


type CorrectionMode = Literal["None", "TokenMask", "SequenceMask", "TokenTruncate", "SequenceTruncate"]


class Correction(Spec):
    """What happens to tokens that were sampled by weights other than those that train on them."""

    mode: CorrectionMode = Field(
        "None",
        description="None: the loss of TRL's asynchronous GRPO, which weights each token by the ratio of its "
        "probabilities now and when it was sampled, and clips that (trainer.config.epsilon, epsilon_high). TokenMask: "
        "the same, without tokens whose ratio is outside minRatio and maxRatio. SequenceMask: without sequences whose "
        "mean ratio (geometric) is outside. TokenTruncate: the ratio is limited to maxRatio, in place of the clip. "
        "SequenceTruncate: the same with the product of a sequence's ratios.",
    )
    min_ratio: str = Field(
        "0.5", pattern=DECIMAL_PATTERN, max_length=16, description="Lowest ratio that a mask keeps (decimal)."
    )
    max_ratio: str = Field(
        "2",
        pattern=DECIMAL_PATTERN,
        max_length=16,
        description="Highest ratio that a mask keeps, or to which a ratio is limited (decimal).",
    )


type FailureAction = Literal["Retry", "DropRollout", "Zero"]


class OnFailure(Spec):
    """What happens to a rollout that fails, by kind of failure."""

    infrastructure: Literal["Retry", "DropRollout"] = Field(
        "Retry",
        description="For what isn't the policy's doing: no connection, a lost pod or sandbox, an answer 429, 502, 503 "
        "or 504, an error of the gateway, vLLM or another model server, an answer without token ids, and every failure "
        "whose cause is unknown. It never counts as a reward. Retry: up to maxAttempts tries, then the rollout is "
        "dropped from its group. DropRollout: no further try, which saves time where rollouts are long and groups "
        "large.",
    )
    timeout: FailureAction = Field(
        "Retry",
        description="For POST /run, and the generation and POST /verify in mode Verify, that pass their deadline, and "
        "timeouts that an agent or a resources server reports. Retry and DropRollout: as above. Zero: no further try; "
        "the rollout counts with reward 0. If its tokens are known (mode Verify: the answer was generated, then "
        "/verify failed or timed out), they are trained on with reward 0. If they are not (mode Agent: POST /run "
        "failed, and its tokens are lost with it), the 0 counts in the group's mean and deviation alone. Choose Zero "
        "where the policy causes timeouts, such as by programs that never end: it would never learn that they are "
        "bad. Don't where servers are slow or go away: NeMo Gym's servers wait for each other without a limit, so POST "
        "/run of an agent passes its deadline then, too.",
    )
    environment: FailureAction = Field(
        "Retry",
        description="For exceptions of an agent or a resources server, and rewards that aren't numbers. Retry, "
        "DropRollout and Zero: as above. Choose Zero where a server fails on what the policy wrote, such as a verifier "
        "that can't parse it: another try may hide it, and the policy would never learn that it is bad. Don't where "
        "servers fail on rows, or by chance.",
    )


class Rollout(Spec):
    """How rollouts are collected."""

    mode: Literal["Agent", "Verify"] = Field(
        "Agent",
        description="Agent: the trainer posts to /run of the row's agent. Verify: it generates one answer through the "
        "gateway, then posts to /verify of the agent's resources server, without agent pods. Use Verify for "
        "environments with one turn.",
    )
    max_concurrent: int = Field(64, ge=1, le=65536, description="Maximum number of rollouts at the same time.")
    timeout_seconds: int = Field(1800, ge=1, le=86400, description="Deadline of one rollout (one POST /run).")
    verify_timeout_seconds: int = Field(300, ge=1, le=86400, description="Deadline of one POST /verify in mode Verify.")
    mask_truncated: bool = Field(
        False,
        description="true leaves completions that hit the token limit out of the loss. Their rewards still count for "
        "the group's mean.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Tries of one rollout, where onFailure says Retry, before its group goes on without it.",
    )
    on_failure: OnFailure = Field(
        default_factory=OnFailure,
        description="What happens to a rollout that fails, by kind of failure. Its group trains with the rollouts that "
        "are left, if at least 2 have tokens and at least 1 of these has a reward from the environment. Otherwise, the "
        "group is dropped and another row is drawn.",
    )
    max_staleness: int = Field(
        4,
        ge=0,
        le=1024,
        description="How far ahead of training rollouts start, in weight versions: one of usual length is trained at "
        "most this many versions after it started. One that takes longer goes on over weight updates, and is trained "
        "when it ends. 0: strictly on-policy, so vLLM and the trainer take turns.",
    )
    dynamic_sampling: bool = Field(
        False,
        description="true leaves out groups whose rewards are all equal, which have no advantage, and draws others in "
        "their place, as DAPO does. It takes more rollouts; the metric "
        "gymtrain_trainer_dropped_groups_by_reason_total with reason equal_rewards counts them. If no group has "
        "different rewards for stallTimeoutSeconds, the attempt fails.",
    )
    correction: Correction = Field(
        default_factory=Correction,
        description="What happens to tokens that were sampled by weights other than those that train on them.",
    )
    stall_timeout_seconds: int = Field(
        1800,
        ge=10,
        le=86400,
        description="Time without a usable rollout group after which the attempt fails. Until then, the run waits and "
        "says so in the Progressing condition.",
    )


class Gateway(PodSettings):
    """The gateway: OpenAI routes in front of all vLLM pods, with exact token ids across turns."""

    replicas: int = Field(1, ge=1, le=64, description="Number of gateway pods.")
    timeout_seconds: int = Field(
        600, ge=1, le=86400, description="Deadline of one model call, including waiting and tries on other vLLM pods."
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=65536,
        description="Maximum number of model calls per vLLM pod at the same time. Others wait in the gateway.",
    )


class WeightSync(Spec):
    """How the trainer's weights reach vLLM."""

    transport: Literal["Auto", "NCCL", "LoRAFilesystem", "HTTPFull", "None"] = Field(
        "Auto",
        description="Auto chooses a transport that the vLLM servers support. NCCL: vLLM's own broadcast between GPUs. "
        "LoRAFilesystem: adapters on the checkpoint volume (with model.lora). HTTPFull: every vLLM pod fetches all "
        "weights from the trainer over HTTP, verifies them, then loads them. None: vLLM keeps the weights it started "
        "with; only for evaluation.",
    )
    timeout_seconds: int = Field(600, ge=1, le=86400, description="Deadline of one weight sync.")
    parity_every_syncs: int = Field(
        50,
        ge=0,
        le=1_000_000,
        description="The trainer recomputes log-probabilities that vLLM sampled after the first sync, and then every "
        "this many syncs. 0: only after the first sync.",
    )
    parity_threshold: str | None = Field(
        None,
        pattern=DECIMAL_PATTERN,
        max_length=16,
        description="Mean difference of those log-probabilities above which the run fails (decimal). Defaults to 0.02 "
        "for float32 weights in vLLM, 0.1 for others.",
    )
