"""What goes to the broker and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.sandbox import SandboxSpec

from gymtrain_gym.sandbox.errors import SandboxUnavailableError

# What upstream's configs set for other providers, and means nothing here.
IGNORED_OPTIONS = frozenset({"platform", "skip_health_check"})
KNOWN_OPTIONS = frozenset({"task", "user"})
TASK_KEYS = ("instance_id", "task", "task_id")  # of a spec's metadata


@dataclass(frozen=True)
class Lease:
    """A sandbox as the broker describes it."""

    id: str
    state: str  # Queued, Starting, Running, Closed or Failed
    url: str = field(default="", repr=False)  # of the daemon
    token: str = field(default="", repr=False)
    instance: str = ""  # of the daemon: url and token may be another sandbox's later
    reason: str = ""
    message: str = ""
    position: int | None = None  # in the queue
    pod: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # of every command, as it was asked for
    workdir: str | None = None  # the same
    user: str | None = None  # the same

    @property
    def waiting(self) -> bool:
        """It may still become ready."""
        return self.state in ("Queued", "Starting")

    @property
    def account(self) -> str:
        """State, reason and message in one line."""
        return " ".join(part for part in (self.state, self.reason and f"({self.reason})", self.message) if part)


def parse(body: Any) -> Lease:
    """The broker's answer.

    Raises:
        SandboxUnavailableError: it is none about a sandbox.
    """
    if not isinstance(body, dict) or not body.get("id") or not body.get("state"):
        raise SandboxUnavailableError(f"the broker answered no sandbox: {str(body)[:200]}")
    return Lease(
        id=str(body["id"]),
        state=str(body["state"]),
        url=str(body.get("url") or "").rstrip("/"),
        token=str(body.get("token") or ""),
        instance=str(body.get("instance") or ""),
        reason=str(body.get("reason") or ""),
        message=str(body.get("message") or ""),
        position=body.get("position"),
        pod=str(body.get("podName") or ""),
        env=dict(body.get("env") or {}),
        workdir=body.get("workdir") or None,
        user=body.get("user") or None,
    )


def request_body(spec: SandboxSpec, key: str, timeout_seconds: float | None) -> dict[str, Any]:
    """POST /v1/sandboxes for `spec`; `key` makes it safe to repeat.

    Raises:
        SandboxUnavailableError: the spec asks for something that the broker has no word for.
    """
    if not spec.image:
        raise SandboxUnavailableError("the sandbox has no image: give the dataset's row an image_name")
    options = dict(spec.provider_options)
    unknown = sorted(set(options) - IGNORED_OPTIONS - KNOWN_OPTIONS)
    if unknown:
        raise SandboxUnavailableError(
            f"provider_options {', '.join(unknown)} mean nothing to the provider gymtrain, which knows "
            f"{', '.join(sorted(KNOWN_OPTIONS))}: leave them out of sandbox_spec"
        )
    resources = spec.resources
    if resources.gpu:
        raise SandboxUnavailableError("sandboxes with GPUs can't be had: leave resources.gpu out of sandbox_spec")
    wanted = {"cpu": resources.cpu, "memoryMiB": resources.memory_mib, "diskGiB": resources.disk_gib}
    metadata = {str(name): str(value) for name, value in spec.metadata.items()}
    task = options.get("task") or next((metadata[name] for name in TASK_KEYS if metadata.get(name)), "")
    body = {
        "image": str(spec.image).removeprefix("docker://"),
        "task": str(task),
        "key": key,
        "workdir": spec.workdir,
        "env": dict(spec.env),
        "user": None if options.get("user") is None else str(options["user"]),
        "entrypoint": list(spec.entrypoint) if spec.entrypoint else None,
        "resources": {name: value for name, value in wanted.items() if value is not None} or None,
        "ports": list(getattr(spec, "ports", ())),  # newer than nemo-gym 0.4
        "ttlSeconds": spec.ttl_s,
        "timeoutSeconds": timeout_seconds,
        "metadata": metadata,
    }
    return {name: value for name, value in body.items() if value is not None}
