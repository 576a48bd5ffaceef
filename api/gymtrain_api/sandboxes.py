"""Documents and names that the broker, its clients and the sandboxes share.

    agent ── POST /v1/sandboxes ──► broker        SandboxRequest → Sandbox
    trainer ── POST /v1/announce ──► broker       Announcement
    agent ── exec, files ──► daemon in the sandbox pod, at Sandbox.url with Sandbox.token

Names are camelCase on the wire. Fields that only another release knows are ignored.
"""

import hashlib
import hmac
from enum import IntEnum, StrEnum
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gymtrain_api.spec import IMAGE_PATTERN

DAEMON_DIR = "/gymtrain"  # in a sandbox, read-only
DAEMON = "gymtrain-sandboxd"

# Environment of the task's container. The daemon hides these variables from commands.
ENV_DAEMON_TOKEN_SHA256 = "GYMTRAIN_SANDBOX_TOKEN_SHA256"  # noqa: S105  the name of a variable
# Replaces that digest if pods are made from one template: a file that the init container writes. Only that container
# has the run's token and knows its pod.
ENV_DAEMON_TOKEN_FILE = "GYMTRAIN_SANDBOX_TOKEN_FILE"  # noqa: S105  the name of a variable
ENV_INSTALL_KEY = "GYMTRAIN_SANDBOX_KEY"
ENV_INSTALL_IDENTITY = "GYMTRAIN_SANDBOX_IDENTITY"
TOKEN_FILE = "token.sha256"  # noqa: S105  the name of a file
ENV_DAEMON_PORT = "GYMTRAIN_SANDBOX_PORT"
ENV_DAEMON_WIPE = "GYMTRAIN_SANDBOX_WIPE"  # folders that outlive the container, colon-separated; /v1/reset empties them
ENV_DAEMON_WIPE_IPC = "GYMTRAIN_SANDBOX_WIPE_IPC"  # 1: /v1/reset also empties the IPC namespace
ENV_DAEMON_DISK = "GYMTRAIN_SANDBOX_DISK"  # bytes that the volumes of the image may take

# Sent with each call: the start of the daemon that it is meant for. A reused pod keeps its address and token.
DAEMON_INSTANCE_HEADER = "Gymtrain-Sandbox-Instance"

MAX_WAIT_SECONDS = 300.0  # of one long poll
# A request without a waiting client is given up after this time.
ABANDONED_SECONDS = 120.0
REQUEST_BYTES = 64 * 1024  # of a SandboxRequest, which is kept in an annotation of the pod


type SandboxBackend = Literal["Pod", "AgentSandbox"]
BACKENDS: tuple[SandboxBackend, ...] = get_args(SandboxBackend.__value__)


class SandboxState(StrEnum):
    """State of a sandbox. Closed and Failed are final."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    CLOSED = "Closed"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a sandbox is Closed or Failed, in addition to the kubelet's own reasons such as OOMKilled or ErrImagePull."""

    CLOSED = "Closed"  # its client closed it
    EXPIRED = "Expired"  # spec.sandboxes.timeoutSeconds, or the request's ttlSeconds
    IDLE = "Idle"  # spec.sandboxes.idleTimeoutSeconds
    ABANDONED = "Abandoned"  # no client waited for it any more
    DEADLINE = "Deadline"  # it did not get its turn or did not start in time
    REJECTED = "Rejected"  # the API server refuses the pod
    UNSCHEDULABLE = "Unschedulable"  # while it starts: no node has room
    RESTARTED = "Restarted"  # its container ended and was restarted: its contents are lost
    UNCOUNTED_DISK = "UncountedDisk"  # it filled disk of its node that the kubelet doesn't count
    EXITED = "Exited"  # its container ended
    POD_DELETED = "PodDeleted"  # someone, or the cluster, deleted the pod


class DaemonExit(IntEnum):
    """How the daemon ends where its sandbox fills disk of the node that the kubelet doesn't count."""

    FILES_FULL = 80  # /dev/termination-log, or another file that is mounted from the node
    VOLUMES_FULL = 81  # the volumes that the image declares


class Document(BaseModel):
    """Base class of the documents."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SandboxResources(Document):
    """Limits of a sandbox. Missing ones come from spec.sandboxes.resources."""

    cpu: float | None = Field(None, gt=0, le=1024, description="CPUs.")
    memory_mib: int | None = Field(None, alias="memoryMiB", ge=4, le=16_777_216, description="Memory in MiB.")
    disk_gib: float | None = Field(None, alias="diskGiB", gt=0, le=65536, description="Disk in GiB.")


class SandboxRequest(Document):
    """Body of POST /v1/sandboxes."""

    image: str = Field(pattern=IMAGE_PATTERN, max_length=512, description="Container image of the task.")
    task: str = Field("", max_length=512, description="The task. Waiting requests of different tasks take turns.")
    key: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Idempotency key: asking again with it returns the same sandbox, even after the broker restarts.",
    )
    workdir: str | None = Field(None, max_length=4096, description="Folder for commands. Returned unchanged.")
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment for commands. Returned unchanged; not set in the pod, which may already run.",
    )
    user: str | None = Field(None, max_length=256, description="User for commands. Returned unchanged.")
    entrypoint: list[str] | None = Field(None, max_length=256, description="Command to start. Returned unchanged.")
    resources: SandboxResources | None = Field(None, description="Limits of the sandbox.")
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list,
        max_length=64,
        description="Ports, which the daemon forwards at /v1/ports/PORT/. Returned unchanged.",
    )
    ttl_seconds: float | None = Field(
        None,
        gt=0,
        description="Maximum lifetime once it runs. At most spec.sandboxes.timeoutSeconds, which is the default.",
    )
    timeout_seconds: float | None = Field(
        None,
        gt=0,
        description="Deadline for queue and start together. By default each has its own: "
        "spec.sandboxes.queueTimeoutSeconds and startTimeoutSeconds.",
    )
    metadata: dict[str, str] = Field(default_factory=dict, description="Returned unchanged.")


class Sandbox(Document):
    """A sandbox, or the request for one while it waits."""

    id: str = Field(description="The broker's id of the sandbox.")
    state: SandboxState = Field(description="Closed and Failed are final.")
    position: int | None = Field(None, description="While Queued: position in the queue, from 1.")
    reason: str = Field("", description="One word: why it is Closed or Failed, or what prevents its start.")
    message: str = Field("", description="The reason as a sentence that says what to do.")
    image: str = Field(description="As requested.")
    task: str = Field("", description="As requested.")
    key: str | None = Field(None, description="As requested.")
    workdir: str | None = Field(None, description="As requested.")
    env: dict[str, str] = Field(default_factory=dict, description="As requested. Send it with each command.")
    user: str | None = Field(None, description="As requested.")
    entrypoint: list[str] | None = Field(None, description="As requested.")
    ports: list[int] = Field(default_factory=list, description="As requested.")
    metadata: dict[str, str] = Field(default_factory=dict, description="As requested.")
    url: str | None = Field(None, description="While Running: base URL of the daemon in the sandbox.")
    token: str | None = Field(None, description="While Running: bearer token of that daemon.")
    instance: str | None = Field(
        None,
        description=f"While Running: send it with each call as {DAEMON_INSTANCE_HEADER}. Once this sandbox has ended, "
        "the daemon then answers 410, even if another sandbox has taken its place.",
    )
    warm: bool = Field(False, description="Whether it was ready when its turn came.")
    created_at: str = Field(description="When it was requested (RFC 3339).")
    ready_at: str | None = Field(None, description="When it began to run for this request.")
    expires_at: str | None = Field(None, description="Latest time at which it is closed, once it runs.")
    pod_name: str | None = Field(None, description="Its pod.")


class SandboxList(Document):
    """Answer of GET /v1/sandboxes: the sandboxes that are not final."""

    sandboxes: list[Sandbox] = Field(default_factory=list, description="Oldest first.")


class AnnouncedTask(Document):
    """One of the next tasks."""

    image: str = Field(pattern=IMAGE_PATTERN, max_length=512, description="As in the request for its sandbox later.")
    task: str = Field("", max_length=512, description="As in the request later.")
    resources: SandboxResources | None = Field(
        None,
        description="As in the request later. Defaults to those of the last request for an image with the same path up "
        "to the last /.",
    )


class Announcement(Document):
    """Body of POST /v1/announce. Replaces the previous announcement."""

    tasks: list[AnnouncedTask] = Field(
        max_length=65536,
        description="Tasks in the order in which they are drawn, with one entry per sandbox that will be requested.",
    )


class Announced(Document):
    """Answer of POST /v1/announce."""

    accepted: int = Field(description="Number of tasks recorded.")
    ahead: int = Field(description="How many of them get a sandbox made ahead (spec.sandboxes.lookAhead.tasks).")


class Refusal(Document):
    """Body of every error answer that isn't a Sandbox."""

    error: str = Field(description="The error in one word.")
    message: str = Field(description="What is wrong and how to fix it.")


def sandbox_token(run_token: str, identity: str) -> str:
    """Bearer token of the daemon in a sandbox pod. `identity` is the pod's name, or its uid if it is made from a
    template. One token doesn't reveal another."""
    return hmac.new(run_token.encode(), f"sandbox:{identity}".encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """Digest of a token. The pod knows only this."""
    return hashlib.sha256(token.encode()).hexdigest()
