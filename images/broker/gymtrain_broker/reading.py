"""What a pod of the API server says, as far as it matters here."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gymtrain_api import labels
from gymtrain_api.sandboxes import Reason, SandboxRequest
from gymtrain_broker import leases
from gymtrain_broker.leases import Lease
from gymtrain_broker.pods import CONTAINER
from gymtrain_broker.times import seconds

type Object = dict[str, Any]

_ON_ITS_WAY = {"", "ContainerCreating", "PodInitializing"}
_PULLING = {"ErrImagePull", "ImagePullBackOff"}
# What a registry says when asking again won't help.
_FINAL_PULLS = (
    "not found",
    "manifest unknown",
    "repository does not exist",
    "name unknown",
    "denied",
    "unauthorized",
    "authentication required",
    "403 forbidden",
    "no match for platform",
    "no matching manifest",
)
_THROTTLED = ("429", "toomanyrequests", "too many requests", "rate limit")
_PULL_FIX = "check the image's name, spec.sandboxes.imageRewrites and imagePullSecrets"
_FIXES = {
    "ErrImageNeverPull": "the image is not on the node and imagePullPolicy is Never: load it, or change the policy",
    "InvalidImageName": "correct the image's name or spec.sandboxes.imageRewrites",
    "CreateContainerConfigError": "see spec.sandboxes.root for images that need root, and what the template refers to",
    "OOMKilled": "it used more memory than its limit: ask for more (resources.memoryMiB), or raise "
    "spec.sandboxes.resources.limits.memory",
    "Evicted": "a node ran short, or the sandbox used more disk than its limit: ask for more (resources.diskGiB), or "
    "raise spec.sandboxes.resources.limits",
}


@dataclass(frozen=True)
class Trouble:
    """What keeps a pod from running.

    Attributes:
        reason: in a word, the kubelet's own where it has one.
        message: in a sentence, with what to do.
        final: waiting won't help.
        throttled: the registry wants to be asked less.
        image: the image can't be pulled.
    """

    reason: str
    message: str
    final: bool
    throttled: bool = False
    image: bool = False


@dataclass(frozen=True)
class SandboxPod:
    """One sandbox pod as last seen."""

    name: str
    uid: str
    version: int
    shape: str
    asked: str  # the image as it was asked for
    image: str
    made_for: str
    reusable: bool
    created: float
    hard_stop: float  # when the kubelet ends it
    deleting: bool
    ended: bool
    ip: str
    running: bool
    started: float | None
    restarts: int
    pulled: bool
    claim: str  # id in the annotation, void or not
    lease: Lease | None
    request: SandboxRequest | None
    trouble: Trouble | None
    last: Trouble  # why the container before the present one ended
    clean: (
        bool  # nothing of an earlier lease is left: a reset wipes volumes that outlive the container, a crash doesn't
    )
    disruption: str  # why the cluster deletes it; empty where it doesn't

    @property
    def leased(self) -> Lease | None:
        """The lease that stands; a restart of the container makes it void."""
        return self.lease if self.claim and self.lease and self.lease.restarts >= self.restarts else None

    @property
    def never_leased(self) -> bool:
        """Whether it has served nobody yet."""
        return not self.claim

    @property
    def lost(self) -> bool:
        """Whether it is over with this pod."""
        return self.deleting or self.ended


def read(pod: Object) -> SandboxPod:
    """The pod; fields that are missing count as not there yet."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    notes = meta.get("annotations") or {}
    container = _container(status.get("containerStatuses"), CONTAINER)
    state = container.get("state") or {}
    created = seconds(meta.get("creationTimestamp")) or 0.0
    begin = seconds(status.get("startTime")) or created
    claim = str(notes.get(labels.SANDBOX_CLAIM) or "")
    lease = leases.from_json(str(notes.get(labels.SANDBOX_LEASE) or "")) if claim else None
    version = str(meta.get("resourceVersion") or "")
    return SandboxPod(
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        version=int(version) if version.isdigit() else 0,
        shape=str((meta.get("labels") or {}).get(labels.SANDBOX_SHAPE) or ""),
        asked=str(notes.get(labels.SANDBOX_IMAGE) or ""),
        image=str(_container(spec.get("containers"), CONTAINER).get("image") or ""),
        made_for=str(notes.get(labels.SANDBOX_MADE_FOR) or ""),
        reusable=spec.get("restartPolicy") == "Always",
        created=created,
        hard_stop=begin + float(spec.get("activeDeadlineSeconds") or 0),
        deleting=bool(meta.get("deletionTimestamp")),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        ip=str(status.get("podIP") or ""),
        running="running" in state,
        started=seconds((state.get("running") or {}).get("startedAt")),
        restarts=int(container.get("restartCount") or 0),
        pulled=bool(container.get("imageID")),
        claim=claim,
        lease=lease,
        request=_request(str(notes.get(labels.SANDBOX_REQUEST) or "")) if claim else None,
        trouble=trouble(pod),
        last=last_end(container),
        clean=not (claim and lease is None)
        and (not container.get("restartCount") or _last_state(container).get("exitCode") == 0),
        disruption=_disruption(status),
    )


def trouble(pod: Object) -> Trouble | None:
    """What ails it; None where it runs or is on its way."""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        return _pod_ended(status)
    installer = _first_ended(status.get("initContainerStatuses"))
    if installer:
        return Trouble("DaemonNotInstalled", _sentence("the daemon could not be put in", installer), final=True)
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if (waiting.get("reason") or "") not in _ON_ITS_WAY:
            return _waiting(one, waiting)
    container = _container(status.get("containerStatuses"), CONTAINER)
    if end := (container.get("state") or {}).get("terminated"):
        return exited(end)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = f"no node takes the sandbox: {condition.get('message', '')}"
            return Trouble(Reason.UNSCHEDULABLE, message, final=False)
    return None


def last_end(container: Object) -> Trouble:
    """Why the container that ran before the present one ended."""
    found = exited(_last_state(container))
    if found.reason == Reason.EXITED:
        return Trouble(Reason.RESTARTED, f"{found.message}, and is started anew: all it held is gone", final=True)
    return found


def exited(end: Object) -> Trouble:
    """What an ended container says."""
    reason = str(end.get("reason") or "")
    if reason in ("OOMKilled", "Evicted"):
        return Trouble(reason, f"the sandbox is gone: {_FIXES[reason]}", final=True)
    return Trouble(Reason.EXITED, _sentence("the sandbox's container ended", end), final=True)


def _pod_ended(status: Object) -> Trouble:
    reason, message = str(status["reason"]), str(status.get("message") or "")
    if reason == "DeadlineExceeded":
        return Trouble(Reason.EXPIRED, "the pod has reached its activeDeadlineSeconds", final=True)
    fix = f"; {_FIXES[reason]}" if reason in _FIXES else ""
    return Trouble(reason, f"the sandbox is gone: {message or reason}{fix}", final=True)


def _waiting(one: Object, waiting: Object) -> Trouble:
    reason, said = str(waiting["reason"]), str(waiting.get("message") or "")
    if reason == "CrashLoopBackOff":
        return last_end(one)
    if reason in _PULLING:
        lower = said.lower()
        throttled = any(word in lower for word in _THROTTLED)
        final = not throttled and any(word in lower for word in _FINAL_PULLS)
        message = f"image {one.get('image', '')} can't be pulled: {said}; {_PULL_FIX}"
        return Trouble(reason, message, final, throttled, image=True)
    fix = f"; {_FIXES[reason]}" if reason in _FIXES else ""
    return Trouble(reason, f"container {one.get('name', '')}: {said or reason}{fix}", final=reason in _FIXES)


def _last_state(container: Object) -> Object:
    return dict((container.get("lastState") or {}).get("terminated") or {})


def _disruption(status: Object) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _sentence(what: str, end: Object) -> str:
    more = str(end.get("message") or "").strip()
    text = f"{what} (exit code {end.get('exitCode')}, {end.get('reason') or 'no reason given'})"
    return f"{text}: {more[-500:]}" if more else text


def _first_ended(statuses: object) -> Object | None:
    """The first init container that failed for good."""
    for one in statuses if isinstance(statuses, list) else []:
        end = (one.get("state") or {}).get("terminated")
        if end and end.get("exitCode"):
            return dict(end)
    return None


def _container(items: object, name: str) -> Object:
    for one in items if isinstance(items, list) else []:
        if one.get("name") == name:
            return dict(one)
    return {}


def _request(text: str) -> SandboxRequest | None:
    try:
        return SandboxRequest.model_validate_json(text)
    except ValidationError:
        return None
