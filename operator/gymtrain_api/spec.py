"""`spec` of a GymTrainingRun.

The types are the truth: the CRD (`crds/`) and the reference (`docs/reference/`) are generated from
them, field descriptions included. Field names are camelCase on the wire, snake_case in Python.
Only what is implemented stands here.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gymtrain_api.sources import DATA_SOURCE_PATTERN, MODEL_SOURCE_PATTERN

# Kubernetes' own objects are passed through as they are: the API server checks them when the
# pods are created, and a copy of their schema here would age.
type KubernetesObject = dict[str, Any]

DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
CIDR_PATTERN = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
IMAGE_PATTERN = r"^[a-zA-Z0-9][-a-zA-Z0-9._:/@]*$"


class Spec(BaseModel):
    """Base of every part of the spec: camelCase on the wire, unknown fields refused, immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SecretKeyRef(Spec):
    """A key of a Secret in the run's namespace."""

    name: str = Field(min_length=1, description="Name of the Secret.")
    key: str = Field(min_length=1, description="Key in the Secret.")


class PodSettings(Spec):
    """What every block that makes pods accepts."""

    image: str | None = Field(None, description="Image that replaces the operator's default for these pods.")
    resources: KubernetesObject | None = Field(
        None, description="Resource requests and limits of the main container (ResourceRequirements)."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec that is merged over what the operator builds, by strategic "
        "merge: containers, volumes and env merge by name. The way out for node selectors, "
        "tolerations, volumes, env, image pull secrets, runtime class. automountServiceAccountToken stays false.",
    )


class ModelStorage(Spec):
    """The volume that holds the model, made and filled once per run."""

    size: str = Field(pattern=SIZE_PATTERN, max_length=32, description="Size of the volume, such as 20Gi.")
    storage_class_name: str | None = Field(None, description="StorageClass; the cluster's default where left out.")
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteMany"],
        min_length=1,
        max_length=2,
        description="Access modes. ReadWriteOnce holds on one node only.",
    )


class Model(Spec):
    """The policy model that is trained."""

    source: str = Field(
        pattern=MODEL_SOURCE_PATTERN,
        max_length=512,
        description="Where the weights come from: hf://ORG/NAME, pvc://CLAIM/PATH, or oci://IMAGE for an "
        "image that holds the model in /models.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of an hf:// source.")
    token_secret: SecretKeyRef | None = Field(
        None, description="Secret key with the Hugging Face token for a gated hf:// source."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of the weights in vLLM. auto means float32 where there is no GPU and the "
        "model's own type on GPUs.",
    )
    lora: KubernetesObject | None = Field(
        None,
        description="Trains an adapter instead of all weights: settings of peft's LoraConfig under peft's own names, "
        "such as r, lora_alpha, target_modules. Checked by preflight.",
    )
    storage: ModelStorage | None = Field(
        None,
        description="Volume that the model is fetched into once and that vLLM and the trainer share. "
        "Left out, each pod fetches its own copy; a pvc:// source needs none.",
    )


class GymServer(PodSettings):
    """Pod settings of one Gym server."""

    replicas: int = Field(1, ge=0, le=256, description="Pods of this server.")


class Gym(PodSettings):
    """The NeMo Gym servers, as ng_run would start them."""

    config_paths: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        min_length=1,
        max_length=32,
        description="Config files as ng_run takes them, relative to NeMo Gym's root in the Gym image. The "
        "policy model server is added where the files bring none.",
    )
    overrides: KubernetesObject = Field(
        default_factory=dict, description="Mapping that is merged last over the config files, as OmegaConf merges."
    )
    servers: dict[str, GymServer] = Field(
        default_factory=dict,
        description="Pod settings by server name (the top-level keys of the Gym config).",
    )
    env: list[KubernetesObject] = Field(
        default_factory=list,
        description="Environment of every Gym server (EnvVar; secrets by valueFrom.secretKeyRef), for "
        "${oc.env:NAME} in the Gym config: keys of judge models and of external services.",
    )


class PromptMessage(Spec):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(min_length=1, max_length=16384, description="Text of the turn.")


class ReasoningGymTask(Spec):
    """A dataset made on the spot by the reasoning_gym package."""

    task: str = Field(min_length=1, description="Name of the reasoning_gym dataset, such as chain_sum.")
    size: int = Field(ge=1, le=10_000_000, description="Number of rows.")
    seed: int = Field(0, ge=0, description="Seed of the generator.")
    config: KubernetesObject = Field(
        default_factory=dict, description="Keyword arguments of the task, such as min_digits."
    )
    prompt_prefix: str | None = Field(
        None, max_length=16384, description="Text put before each question, in the same turn: instructions."
    )
    messages: list[PromptMessage] = Field(
        default_factory=list,
        max_length=32,
        description="Turns put before each question: a system prompt, worked examples (a question by the user, its "
        "answer by the assistant).",
    )


class Dataset(Spec):
    """One dataset: exactly one of source and reasoningGym."""

    source: str | None = Field(
        None,
        pattern=DATA_SOURCE_PATTERN,
        max_length=512,
        description="JSONL file: pvc://CLAIM/PATH, configmap://NAME/KEY, or gym://PATH in the Gym image.",
    )
    reasoning_gym: ReasoningGymTask | None = Field(None, description="Dataset made on the spot by reasoning_gym.")
    weight: int = Field(1, ge=1, le=1000, description="How often this dataset is drawn from, relative to the others.")
    agent: str | None = Field(
        None,
        min_length=1,
        description="Agent server for rows that carry no agent_ref. May be left out where the config has one agent.",
    )


class Data(Spec):
    """The datasets of the run."""

    train: list[Dataset] = Field(min_length=1, max_length=64, description="Datasets to train on.")


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
        description="Size of a volume that is made for the run and deleted with it.",
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
        description="Volume of the checkpoints. Left out, they live in the pod: a new attempt starts from step 0.",
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


class WarmPool(Spec):
    """Sandboxes of one image that are ready before they are asked for."""

    image: str = Field(
        pattern=IMAGE_PATTERN,
        max_length=512,
        description="Image, as the environment asks for it (before imageRewrites).",
    )
    replicas: int = Field(1, ge=0, le=4096, description="Free sandboxes to keep ready.")
    reuse: Literal["Never", "Restart"] = Field(
        "Never",
        description="What becomes of a sandbox after its task. Never: it is deleted. Restart: its container is started "
        "anew with a fresh file system and serves another task, unless the kubelet would delay the restart: it does "
        "so for containers that are restarted for a second time and ran for less than ten minutes. Those are deleted. "
        "Restart needs the backend Pod.",
    )


class LookAhead(Spec):
    """Sandboxes made for tasks that the trainer has announced."""

    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Sandboxes made ahead for the announced tasks that come next, besides those of the warm pools.",
    )


class SandboxNetwork(Spec):
    """What sandboxes reach."""

    mode: Literal["Closed", "EgressAllowed"] = Field(
        "Closed",
        description="Closed: nothing, not even DNS. EgressAllowed: the ranges of cidrs, and DNS. Either way only the "
        "run's broker and Gym servers reach a sandbox.",
    )
    cidrs: list[Annotated[str, Field(pattern=CIDR_PATTERN, max_length=64)]] = Field(
        default_factory=list,
        max_length=64,
        description="Address ranges that EgressAllowed opens, but for the metadata services of clouds in wider ones.",
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=64, description="TCP ports that EgressAllowed opens; all where left out."
    )


class ImageRewrite(Spec):
    """Another place for images."""

    from_: str = Field(
        alias="from",
        min_length=1,
        max_length=512,
        description="Prefix of the image as the environment asks for it, or of its full name: docker.io/ fits a/b, "
        "which is docker.io/a/b.",
    )
    to: str = Field(max_length=512, description="What stands in its stead.")


class PrePull(Spec):
    """Images that are pulled before a sandbox needs them, and how fast."""

    max_per_registry: int = Field(
        4,
        ge=1,
        le=1024,
        description="New images that are pulled ahead from one registry at once, by sandboxes made ahead too. A "
        "registry that answers 429 is left alone for a while, longer each time, and then asked again.",
    )
    images: list[Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)]] = Field(
        default_factory=list,
        max_length=256,
        description="Images to pull as soon as the broker is up, as the environment asks for them (before "
        "imageRewrites), in this order.",
    )
    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Announced tasks, after those of lookAhead, whose images are pulled: that takes no CPU and memory "
        "of sandboxes, and their start is short.",
    )
    nodes: int = Field(
        1,
        ge=1,
        le=256,
        description="Nodes that get each of these images, fewer where there are fewer. The scheduler prefers nodes "
        "that have an image.",
    )


class ImagePullSecret(Spec):
    """A Secret with a registry's credentials."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret in the run's namespace.")


class Sandboxes(Spec):
    """One pod per task in which an agent runs commands."""

    backend: Literal["Auto", "Pod", "AgentSandbox"] = Field(
        "Auto",
        description="What sandboxes are made of. Pod: pods that the broker makes. AgentSandbox: SandboxClaims of "
        "agent-sandbox v1 (extensions.agents.x-k8s.io/v1beta1), whose controller makes the pods; needs it installed "
        "with its extensions. Auto: AgentSandbox where the cluster serves it, its controller answers and no warm pool "
        "has reuse: Restart; else Pod. The condition SandboxesReady says which, and why. Fixed once preflight has "
        "passed.",
    )
    max_concurrent: int = Field(
        64, ge=1, le=65536, description="Sandboxes in use or being started for a task; further requests wait."
    )
    max_queued: int = Field(4096, ge=0, le=65536, description="Requests that may wait; further ones are refused (429).")
    warm_pools: list[WarmPool] = Field(
        default_factory=list,
        max_length=256,
        description="Sandboxes kept ready, by image.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["image"]},
    )
    look_ahead: LookAhead = Field(
        default_factory=LookAhead, description="Sandboxes made for tasks that the trainer has announced."
    )
    timeout_seconds: int = Field(18000, ge=10, le=604800, description="Longest life of a sandbox in use.")
    idle_timeout_seconds: int = Field(
        1800, ge=10, le=604800, description="Time without a command or file access after which a sandbox is closed."
    )
    start_timeout_seconds: int = Field(
        1200, ge=1, le=86400, description="Time that a sandbox may take to start, pulling its image included."
    )
    queue_timeout_seconds: int = Field(3600, ge=1, le=86400, description="Time that a request may wait for its turn.")
    resources: KubernetesObject | None = Field(
        None,
        description="Resource requests and limits of a sandbox that asks for none (ResourceRequirements), merged over "
        "requests of 100m CPU, 128Mi memory, 256Mi ephemeral-storage and limits of 4Gi memory, 20Gi ephemeral-storage. "
        "What a task asks for replaces the limits.",
    )
    runtime_class_name: str | None = Field(
        None, min_length=1, max_length=253, description="RuntimeClass, such as one of gVisor or Kata Containers."
    )
    network: SandboxNetwork = Field(default_factory=SandboxNetwork, description="What sandboxes reach.")
    root: bool = Field(
        False,
        description="Commands run as root in the container, with the capabilities CHOWN, DAC_OVERRIDE, FOWNER, SETUID, "
        "SETGID and KILL. SWE-bench's images need it. false: restricted Pod Security, user 65532.",
    )
    host_users: bool | None = Field(
        None,
        description="false gives each sandbox a user namespace: its root is nobody on the node. Needs nodes and a "
        "runtime that support it: elsewhere no sandbox starts. true never does. Left out, sandboxes with root and "
        "without runtimeClassName get one where the operator was told that the cluster has them "
        "(sandboxes.userNamespaces of the chart).",
    )
    image_pull_secrets: list[ImagePullSecret] = Field(
        default_factory=list, max_length=32, description="Secrets with credentials of the registries of task images."
    )
    image_rewrites: list[ImageRewrite] = Field(
        default_factory=list,
        max_length=64,
        description="Prefixes of images to replace, for a mirror; the first that fits applies.",
    )
    pre_pull: PrePull = Field(
        default_factory=PrePull, description="Images that are pulled before a sandbox needs them, and how fast."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec that is merged over sandbox pods, by strategic merge; the task's "
        "container is called sandbox. What stays: its command, restart policy, deadline, no ServiceAccount token.",
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


class GymTrainingRunSpec(Spec):
    """What to train, on what, with which servers."""

    suspend: bool = Field(
        False, description="Stops the run and frees its pods; false resumes from the last checkpoint."
    )
    model: Model = Field(description="The policy model that is trained.")
    gym: Gym = Field(description="The NeMo Gym servers.")
    data: Data = Field(description="The datasets.")
    inference: Inference = Field(default_factory=Inference, description="The vLLM servers.")
    trainer: Trainer = Field(default_factory=Trainer, description="The training Job.")
    rollout: Rollout = Field(default_factory=Rollout, description="How rollouts are collected.")
    gateway: Gateway = Field(default_factory=Gateway, description="The gateway in front of vLLM.")
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="How weights reach vLLM.")
    sandboxes: Sandboxes | None = Field(
        None, description="A pod per task in which agents run commands, for environments that need one."
    )
    service_account_name: str | None = Field(
        None, description="ServiceAccount of all pods of the run, for image pull secrets. No pod gets its token."
    )
    startup_deadline_seconds: int = Field(
        1800,
        ge=10,
        le=86400,
        description="Time that the servers of an attempt may take to become ready before the attempt fails.",
    )
    backoff_limit: int = Field(3, ge=0, le=1000, description="Attempts after the first before the run fails.")
    active_deadline_seconds: int | None = Field(
        None, ge=1, description="Time since the start, suspended time left out, after which the run fails."
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Time after the end at which the run is deleted, with all that it owns."
    )
