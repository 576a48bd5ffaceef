"""Documents and names that the broker, its clients and the sandboxes share.

    agent ── POST /v1/sandboxes ──► broker        SandboxRequest → Sandbox
    trainer ── POST /v1/announce ──► broker       Announcement
    agent ── exec, files ──► daemon in the sandbox pod, at Sandbox.url with Sandbox.token

camelCase on the wire. Clients of another release may send or get fields that this one doesn't know: they are ignored.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gymtrain_api.spec import IMAGE_PATTERN

DAEMON_DIR = "/gymtrain"  # in a sandbox, read-only
DAEMON = "gymtrain-sandboxd"

# Environment of the task's container. The daemon takes these out of what commands see.
ENV_DAEMON_TOKEN_SHA256 = "GYMTRAIN_SANDBOX_TOKEN_SHA256"  # noqa: S105  the name of a variable
# In place of that digest, where pods are made from one template: a file that the init container writes, which alone
# has the run's token and knows which pod it is in.
ENV_DAEMON_TOKEN_FILE = "GYMTRAIN_SANDBOX_TOKEN_FILE"  # noqa: S105  the name of a variable
ENV_INSTALL_KEY = "GYMTRAIN_SANDBOX_KEY"
ENV_INSTALL_IDENTITY = "GYMTRAIN_SANDBOX_IDENTITY"
TOKEN_FILE = "token.sha256"  # noqa: S105  the name of a file
ENV_DAEMON_PORT = "GYMTRAIN_SANDBOX_PORT"
ENV_DAEMON_WIPE = "GYMTRAIN_SANDBOX_WIPE"  # folders that outlive the container, colon-separated: emptied by /v1/reset
ENV_DAEMON_WIPE_IPC = "GYMTRAIN_SANDBOX_WIPE_IPC"  # 1: the IPC namespace is emptied too

# With each call: which start of the daemon it is meant for. A pod that is reused keeps its address and token.
DAEMON_INSTANCE_HEADER = "Gymtrain-Sandbox-Instance"

MAX_WAIT_SECONDS = 300.0  # of one long poll
# A request that nobody waits for is given up after this time: its client has gone.
ABANDONED_SECONDS = 120.0
REQUEST_BYTES = 64 * 1024  # of a SandboxRequest: it is kept in an annotation of the pod


type SandboxBackend = Literal["Pod", "AgentSandbox"]
BACKENDS: tuple[SandboxBackend, ...] = get_args(SandboxBackend.__value__)


class SandboxState(StrEnum):
    """Where a sandbox is in its life. Closed and Failed are final."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    CLOSED = "Closed"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a sandbox is Closed or Failed, beside the kubelet's own words such as OOMKilled or ErrImagePull."""

    CLOSED = "Closed"  # its client closed it
    EXPIRED = "Expired"  # spec.sandboxes.timeoutSeconds, or the request's ttlSeconds
    IDLE = "Idle"  # spec.sandboxes.idleTimeoutSeconds
    ABANDONED = "Abandoned"  # nobody waited for it any more
    DEADLINE = "Deadline"  # it did not get its turn, or did not start, in time
    REJECTED = "Rejected"  # the API server refuses the pod
    UNSCHEDULABLE = "Unschedulable"  # while it starts: no node has room
    RESTARTED = "Restarted"  # its container ended and was started anew: all it held is gone
    EXITED = "Exited"  # its container ended
    POD_DELETED = "PodDeleted"  # somebody, or the cluster, deleted the pod


class Document(BaseModel):
    """Base of the documents."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SandboxResources(Document):
    """What a sandbox may use at most. What is left out is as spec.sandboxes.resources says."""

    cpu: float | None = Field(None, gt=0, le=1024, description="CPUs.")
    memory_mib: int | None = Field(None, alias="memoryMiB", ge=4, le=16_777_216, description="Memory in MiB.")
    disk_gib: float | None = Field(None, alias="diskGiB", gt=0, le=65536, description="Disk in GiB.")


class SandboxRequest(Document):
    """Body of POST /v1/sandboxes."""

    image: str = Field(pattern=IMAGE_PATTERN, max_length=512, description="Container image of the task.")
    task: str = Field("", max_length=512, description="The task. Tasks take turns where requests wait.")
    key: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Idempotency key: asking again with it gives the same sandbox, after a restart of the broker too.",
    )
    workdir: str | None = Field(None, max_length=4096, description="Returned as it is: a folder for commands.")
    env: dict[str, str] = Field(
        default_factory=dict, description="Returned as it is, for commands; not set in the pod, which may be ready."
    )
    user: str | None = Field(None, max_length=256, description="Returned as it is: the user for commands.")
    entrypoint: list[str] | None = Field(None, max_length=256, description="Returned as it is: a command to start.")
    resources: SandboxResources | None = Field(None, description="What the sandbox may use at most.")
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=64, description="Returned as it is: the daemon's /v1/ports/PORT/ leads there."
    )
    ttl_seconds: float | None = Field(
        None, gt=0, description="Longest life once it runs; at most, and by default, spec.sandboxes.timeoutSeconds."
    )
    timeout_seconds: float | None = Field(
        None,
        gt=0,
        description="Deadline of the wait in the queue and of the start, together. By default each has its own: "
        "spec.sandboxes.queueTimeoutSeconds and startTimeoutSeconds.",
    )
    metadata: dict[str, str] = Field(default_factory=dict, description="Returned as it is.")


class Sandbox(Document):
    """A sandbox, or the request for one while it waits."""

    id: str = Field(description="Its name for the broker.")
    state: SandboxState = Field(description="Closed and Failed are final.")
    position: int | None = Field(None, description="While Queued: its place in the queue, from 1.")
    reason: str = Field("", description="In a word why it is Closed or Failed, or what keeps it from starting.")
    message: str = Field("", description="The same in a sentence that says what to do.")
    image: str = Field(description="As asked for.")
    task: str = Field("", description="As asked for.")
    key: str | None = Field(None, description="As asked for.")
    workdir: str | None = Field(None, description="As asked for.")
    env: dict[str, str] = Field(default_factory=dict, description="As asked for: send it with each command.")
    user: str | None = Field(None, description="As asked for.")
    entrypoint: list[str] | None = Field(None, description="As asked for.")
    ports: list[int] = Field(default_factory=list, description="As asked for.")
    metadata: dict[str, str] = Field(default_factory=dict, description="As asked for.")
    url: str | None = Field(None, description="While Running: base URL of the daemon in the sandbox.")
    token: str | None = Field(None, description="While Running: bearer token of that daemon.")
    instance: str | None = Field(
        None,
        description=f"While Running: send it with each call as {DAEMON_INSTANCE_HEADER}. Once this sandbox has ended, "
        "the daemon then answers 410, whatever may be in its place.",
    )
    warm: bool = Field(False, description="It was ready when its turn came.")
    created_at: str = Field(description="When it was asked for (RFC 3339).")
    ready_at: str | None = Field(None, description="Since when it runs for this request.")
    expires_at: str | None = Field(None, description="When it is closed at the latest, once it runs.")
    pod_name: str | None = Field(None, description="Its pod.")


class SandboxList(Document):
    """Answer of GET /v1/sandboxes: those that are not final."""

    sandboxes: list[Sandbox] = Field(default_factory=list, description="Oldest first.")


class AnnouncedTask(Document):
    """A task that comes soon."""

    image: str = Field(pattern=IMAGE_PATTERN, max_length=512, description="As the request for its sandbox will say.")
    task: str = Field("", max_length=512, description="As the request will say.")
    resources: SandboxResources | None = Field(
        None, description="As the request will say; by default what the last request for an image of that place said."
    )


class Announcement(Document):
    """Body of POST /v1/announce; replaces the one before."""

    tasks: list[AnnouncedTask] = Field(
        max_length=65536,
        description="Tasks in the order of their drawing: one entry for each sandbox that will be asked for.",
    )


class Announced(Document):
    """Answer of POST /v1/announce."""

    accepted: int = Field(description="Tasks noted.")
    ahead: int = Field(description="How many of them get a sandbox made ahead (spec.sandboxes.lookAhead.tasks).")


class Refusal(Document):
    """Body of every answer that is an error and no Sandbox."""

    error: str = Field(description="In a word.")
    message: str = Field(description="What is wrong and how to put it right.")


def sandbox_token(run_token: str, identity: str) -> str:
    """Bearer token of the daemon in a sandbox pod, by the pod's name, or its uid where a template names it. Whoever
    has one can't compute another's."""
    return hmac.new(run_token.encode(), f"sandbox:{identity}".encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """What the pod knows of its token."""
    return hashlib.sha256(token.encode()).hexdigest()
