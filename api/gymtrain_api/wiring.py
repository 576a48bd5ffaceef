"""The wiring contract: paths, ports, exit codes and documents between the parts of a run.

Any trainer image that follows the trainer's half of this module can replace ours (spec.trainer.command); line by line,
that half is in `trainer_contract`.

Files in the pods (all are read-only except the scratch folders):

| path | where | content |
|---|---|---|
| /etc/gymtrain/run/run.json | all pods | `RunConfig` |
| /etc/gymtrain/gym/config.yaml | Gym servers | the resolved Gym config, with Service names as hosts |
| /gymtrain/model | vLLM, trainer, preflight | the policy model (a Hugging Face folder) |
| /gymtrain/sources/N | trainer, preflight | dataset N of data.train, if it is on a volume or in a ConfigMap |
| /gymtrain/sources/validation-N | trainer, preflight | the same of data.validation |
| /gymtrain/fetched | trainer, preflight | what `spec.data.storage` keeps: datasets that were fetched, and `prepared` |
| /gymtrain/data | trainer, preflight | `DataIndex` in index.json, and the files that it names |
| /gymtrain/checkpoints | trainer | checkpoints, TensorBoard files, rewards.csv and more records, state of the worker |
| /gymtrain/resume/RUN | trainer, preflight | checkpoints of the run that `spec.resumeFrom` names; read-only |
| /gymtrain/checkpoints | vLLM, if it takes adapters from it | the same volume, read-only |
| /gymtrain/compile-cache | vLLM, with `spec.inference.compileCache` | what vLLM servers compiled: one archive a model |
| /etc/gymtrain/broker/token | broker, Gym servers, trainer | the bearer token of the sandbox broker |
| /gymtrain/scratch | all pods | writable, empty at start; HOME, HF_HOME and TMPDIR are below it |

Preflight prints one line on stdout: `PREFLIGHT_MARK`, then a `GymPreflight`, `TrainerPreflight` or `InferencePreflight`
as JSON. It exits with 0 if it could print the line, even if it found errors.
"""

from enum import IntEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gymtrain_api.spec import GymTrainingRunSpec

RUN_CONFIG_DIR = "/etc/gymtrain/run"
RUN_CONFIG_FILE = "/etc/gymtrain/run/run.json"
GYM_CONFIG_DIR = "/etc/gymtrain/gym"
GYM_CONFIG_FILE = "/etc/gymtrain/gym/config.yaml"
ENV_DATA_TOKEN = "GYMTRAIN_DATA_TOKEN"  # noqa: S105 - a name: of the variable with spec.data.prepare.tokenSecret
BROKER_TOKEN_DIR = "/etc/gymtrain/broker"  # noqa: S105 - a path
BROKER_TOKEN_FILE = "/etc/gymtrain/broker/token"  # noqa: S105 - a path
RUN_TOKEN_DIR = "/etc/gymtrain/token"  # noqa: S105 - a path
RUN_TOKEN_FILE = "/etc/gymtrain/token/token"  # noqa: S105 - a path
MODEL_DIR = "/gymtrain/model"
SOURCES_DIR = "/gymtrain/sources"
FETCHED_DIR = "/gymtrain/fetched"
DATA_DIR = "/gymtrain/data"
DATA_INDEX_FILE = "/gymtrain/data/index.json"
CHECKPOINT_DIR = "/gymtrain/checkpoints"
RESUME_DIR = "/gymtrain/resume"
COMPILE_CACHE_DIR = "/gymtrain/compile-cache"
SCRATCH_DIR = "/gymtrain/scratch"
MODEL_IMAGE_DIR = "/models"  # KServe's modelcar layout
TERMINATION_LOG = "/dev/termination-log"

GYM_PORT = 8000
INFERENCE_PORT = 8000
GATEWAY_PORT = 8000
BROKER_PORT = 8000
SANDBOX_PORT = 8787  # of the daemon in each sandbox
TRAINER_GRACE_SECONDS = 30  # between SIGTERM and SIGKILL, unless the trainer's template sets another value
TRAINER_PORT = 8080  # /healthz /progress /samples /metrics /weights/...
RENDEZVOUS_PORT = 29500
GROUP_PORT = 29510  # of the leader of a vLLM server of several pods: what its workers must know to join
GROUP_RENDEZVOUS_PORT = 29501  # there, of vLLM's own torch.distributed group

# Environment of Gym server pods.
ENV_GYM_SERVER = "GYMTRAIN_GYM_SERVER"  # top-level key of the server; "head_server" for the head server
ENV_DRAIN_SECONDS = "GYMTRAIN_DRAIN_SECONDS"  # time to finish open requests; shorter than the pod's grace period
# Environment of pods that use sandboxes.
ENV_BROKER_URL = "GYMTRAIN_BROKER_URL"
ENV_RUN_TOKEN_FILE = "GYMTRAIN_RUN_TOKEN_FILE"  # noqa: S105 - a name
ENV_BROKER_TOKEN_FILE = "GYMTRAIN_BROKER_TOKEN_FILE"  # noqa: S105 - a name
# Environment of the broker.
ENV_BROKER_TOKEN_SECRET = "GYMTRAIN_BROKER_TOKEN_SECRET"  # noqa: S105 - name of the Secret with the token
ENV_SANDBOX_IMAGE = "GYMTRAIN_SANDBOX_IMAGE"  # of the daemon in every sandbox
ENV_SANDBOX_PULL_POLICY = "GYMTRAIN_SANDBOX_PULL_POLICY"
ENV_SANDBOX_BACKEND = "GYMTRAIN_SANDBOX_BACKEND"
ENV_SANDBOX_MAX_RESOURCES = "GYMTRAIN_SANDBOX_MAX_RESOURCES"  # as cpu=8,memory=32Gi: that a sandbox may ask for
ENV_USER_NAMESPACES = "GYMTRAIN_USER_NAMESPACES"  # "1": the cluster supports them, so root sandboxes get them
ENV_IMAGE_VOLUMES = "GYMTRAIN_IMAGE_VOLUMES"  # "1": the cluster supports them, so the daemon is mounted and not copied
# Environment of trainer pods.
ENV_ATTEMPT = "GYMTRAIN_ATTEMPT"
ENV_NODES = "GYMTRAIN_NODES"
ENV_MASTER_HOST = "GYMTRAIN_MASTER_HOST"  # DNS name of the attempt's node 0, known some seconds after its pod
ENV_NODE_RANK = "JOB_COMPLETION_INDEX"  # set by the Job controller
# In place of paths and ports of a pod, for a part of a run that runs elsewhere: tests and benchmarks set them.
ENV_RUN_CONFIG = "GYMTRAIN_RUN_CONFIG"
ENV_ROOT = "GYMTRAIN_ROOT"  # above model, data, checkpoints and scratch
ENV_TERMINATION_LOG = "GYMTRAIN_TERMINATION_LOG"
ENV_TRAINER_PORT = "GYMTRAIN_TRAINER_PORT"
ENV_CHECK_SAMPLES = "GYMTRAIN_CHECK_SAMPLES"  # debugging: share of rows (0 to 1) to recompute log-probabilities for

PUSH_PREFIX = "GYMTRAIN_PUSH_"  # of the variables that a Secret of spec.trainer.push becomes in the trainer's pods

HEAD_SERVER = "head_server"
POLICY_MODEL_SERVER = "policy_model"
SERVED_MODEL_NAME = "policy"  # the model's name in vLLM, and policy_model_name in the Gym config

PREFLIGHT_MARK = "GYMTRAIN-PREFLIGHT "


def source_folder(place: str) -> str:
    """Folder below SOURCES_DIR of the dataset at a place of spec.data: N for train[N], validation-N for
    validation[N]."""
    name, _, number = place.rstrip("]").partition("[")
    return number if name == "train" else f"{name}-{number}"


class ExitCode(IntEnum):
    """Exit codes of the trainer for the operator."""

    OK = 0
    RETRY = 1  # and any other code: a new attempt may help
    REFUSED = 78  # EX_CONFIG: retrying can't help; the termination message says why


class Document(BaseModel):
    """Base class of the documents."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class VerifyRoute(Document):
    """The servers that replace one agent in mode Verify."""

    model_url: str  # Gym model server: POST /v1/responses
    resources_url: str  # Gym resources server: POST /seed_session, /verify


class RunConfig(Document):
    """`run.json`: what a pod must know about its run."""

    name: str
    namespace: str
    uid: str = ""  # of the resource; a run that was deleted and created again is another run
    lineage: str = ""  # the same, or for a run restored from a backup, that of the original run. Checkpoints have it
    spec: GymTrainingRunSpec
    # http://HOST:PORT of the servers
    inference_url: str  # pods that hold the run's weights, load-balanced
    inference_pods_host: str  # headless: one A record per vLLM pod, ready or not
    gateway_url: str = ""  # of the gateway's Service, through which Gym servers and the trainer generate
    gateway_pods_host: str = ""  # headless: one A record per gateway pod
    broker_url: str = ""  # of the sandbox broker's Service; empty if the run has no sandboxes
    trainer_host: str  # headless; pod N of attempt A is <job>-N.<trainer_host>
    agents: dict[str, str] = Field(default_factory=dict)  # URL by agent server; empty during preflight
    verifiers: dict[str, VerifyRoute] = Field(default_factory=dict)  # by agent server, in mode Verify


class Finding(Document):
    """A message about the user's input. In a verdict's `findings` it stops the run; in `warnings` it doesn't."""

    where: str  # field path in the spec, file:line of a dataset, or key of a config
    message: str  # what is wrong, what was expected, the nearest valid name


class GymServerInfo(Document):
    """A server of the resolved Gym config."""

    name: str  # top-level key
    kind: Literal["agent", "resources", "model"]
    implementation: str  # folder name below responses_api_agents/ and the like
    needs_ray: bool = False
    references: list[str] = Field(default_factory=list)  # names of the servers that it calls


class DataFile(Document):
    """One indexed dataset. `offsets_file` locates its rows: rows+1 little-endian uint64 byte offsets."""

    file: str
    offsets_file: str
    rows: int
    weight: int
    default_agent: str | None = None  # for rows without agent_ref
    agents: dict[str, int] = Field(default_factory=dict)  # rows by agent


class DataIndex(Document):
    """`index.json` of the data folder."""

    train: list[DataFile] = Field(default_factory=list)
    validation: list[DataFile] = Field(default_factory=list)  # their weight counts nowhere


class GymPreflight(Document):
    """Verdict of the Gym image. `config` is resolved except ${oc.env:...}; the operator sets hosts and ports."""

    kind: Literal["gym"] = "gym"
    findings: list[Finding] = Field(default_factory=list)
    warnings: list[Finding] = Field(default_factory=list)
    config: dict[str, object] = Field(default_factory=dict)
    servers: list[GymServerInfo] = Field(default_factory=list)
    data: DataIndex = Field(default_factory=DataIndex)
    seconds: float = 0.0


class InferencePreflight(Document):
    """Verdict of vLLM's image."""

    kind: Literal["inference"] = "inference"
    findings: list[Finding] = Field(default_factory=list)
    asked_vllm: bool = False  # vLLM was imported, because the image's own notes left a doubt
    seconds: float = 0.0


class TrainerPreflight(Document):
    """Verdict of the trainer image."""

    kind: Literal["trainer"] = "trainer"
    findings: list[Finding] = Field(default_factory=list)
    warnings: list[Finding] = Field(default_factory=list)
    max_steps: int | None = None
    seconds: float = 0.0


type AlarmReason = Literal[
    "KLHigh",
    "RatioOff",
    "ParityOff",
    "Stalled",
    "CheckpointFailed",
    "RecordsFailed",
    "ReporterFailed",
    "EnvironmentFailing",
    "NoLedgerEntry",
]
"""Values of conditions.Reason that the trainer gives Healthy."""


class Alarm(Document):
    """A problem with the run's samples or its pace."""

    reason: AlarmReason
    message: str
    since: float  # seconds since the epoch


class WeightsHeld(Document):
    """`GET /weights/held` of trainer pod 0: the weight versions that the gateway may use."""

    version: str | None = None  # current version, run:attempt:step; None before the first sync
    pods: dict[str, str] = Field(default_factory=dict)  # version by vLLM pod (http://ADDRESS:PORT)


class Notice(Document):
    """Something that happened once and that the user should know; becomes an event of the run."""

    reason: str  # of conditions.Reason
    message: str


class LostRollouts(Document):
    """Rollouts of one environment that failed for good in one way: dropped from their group, or counted as 0."""

    environment: str  # agent server
    kind: str  # field of spec.rollout.onFailure
    rollouts: int


class TrainerProgress(Document):
    """`GET /progress` of trainer pod 0, and its termination message (without samples) at the end."""

    phase: Literal["starting", "waiting_for_servers", "waiting_for_rollouts", "training", "complete", "failed"]
    message: str = ""  # what it waits for, or why it failed
    step: int = 0
    max_steps: int | None = None
    reward: float | None = None  # mean reward of the last step's samples
    tokens_per_second: float | None = None
    validation_reward: float | None = None  # mean of the last evaluation that has one
    validation_step: int | None = None  # its step
    best_validation_reward: float | None = None
    best_step: int | None = None
    rollouts: int = 0
    failed_rollouts: int = 0  # tries
    lost_rollouts: list[LostRollouts] = Field(default_factory=list)  # the most first; bounded, see status.Progress
    dropped_groups: int = 0
    rollouts_failing_since: float | None = None  # seconds since the epoch; None while groups arrive
    weight_version: str | None = None  # label of a WeightVersion
    transport: str | None = None
    transport_reason: str = ""
    parity: float | None = None  # mean |difference| of the trainer's and vLLM's log-probabilities, when last checked
    alarms: list[Alarm] = Field(default_factory=list)
    notices: list[Notice] = Field(default_factory=list)
    servers_ready_at: float | None = None  # seconds since the epoch, for the benchmarks
    training_started_at: float | None = None
    first_step_at: float | None = None
    updated_at: float = 0.0
