"""A pod's state as the broker sees it, what keeps it from running, and how to fix that."""

from dataclasses import dataclass

from pydantic import ValidationError

from gymtrain_api import labels
from gymtrain_api.pods import condition, container_statuses, phase, stuck_container, unschedulable
from gymtrain_api.sandboxes import DAEMON, DAEMON_DIR, DaemonExit, Reason, SandboxRequest
from gymtrain_api.times import to_seconds
from gymtrain_broker.objects import leases
from gymtrain_broker.objects.leases import Lease
from gymtrain_broker.objects.sandbox_pod import CONTAINER
from gymtrain_kube.objects import Object

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
_NO_DAEMON = "DaemonNotInstalled"
_NEVER_RAN = ("StartError", "ContainerCannotRun", "RunContainerError")
_PROGRAM = f'"{DAEMON_DIR}/{DAEMON}"'  # as a runtime names what it could not start
# An API server that has none takes the field away and makes the volume an empty folder.
_NO_IMAGE_VOLUME = (
    "image volumes need Kubernetes 1.35 (or the feature gate ImageVolume) and containerd 2.1 on the node: "
    "without them unset sandboxes.imageVolumes of the chart"
)
_PULL_FIX = "check the image's name, spec.sandboxes.imageRewrites and imagePullSecrets"
_FIXES = {
    "ErrImageNeverPull": "the image is not on the node and imagePullPolicy is Never: load it, or change the policy",
    "InvalidImageName": "correct the image's name or spec.sandboxes.imageRewrites",
    "CreateContainerConfigError": "see spec.sandboxes.root for images that need root, and what the template refers to",
    "OOMKilled": "it used more memory than its limit: request more (resources.memoryMiB), or raise "
    "spec.sandboxes.resources.limits.memory",
    "Evicted": "a node ran short, or the sandbox used more disk than its limit: request more (resources.diskGiB), or "
    "raise spec.sandboxes.resources.limits",
}

# What the daemon's exit codes say where its message is missing, and what to do.
_UNCOUNTED = {
    DaemonExit.FILES_FULL: (
        "a file that is mounted from the node, such as /dev/termination-log, took too much of its disk",
        "let the task's commands write elsewhere: nothing limits these files but the daemon",
    ),
    DaemonExit.VOLUMES_FULL: (
        "the volumes of its image took too much of the node's disk",
        "request more (resources.diskGiB), raise spec.sandboxes.resources.limits, or let the task's commands write "
        "outside of what its image declares as VOLUME",
    ),
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

    name: str  # of the object that carries the lease
    uid: str
    pod_name: str  # empty where there is none yet
    identity: str  # what its token is made from
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
    held_up: bool  # a node has it and has not got as far as its network: its containers can't even be pulled
    running: bool
    started: float | None
    restarts: int
    pulled: bool
    claim: str  # id in the annotation, void or not
    lease: Lease | None
    request: SandboxRequest | None
    trouble: Trouble | None
    last: Trouble  # why the container before the present one ended
    clean: bool  # nothing of an earlier lease is left: a reset empties what outlives the container, a crash does not
    disruption: str  # why the cluster deletes it; empty if it doesn't

    @property
    def leased(self) -> Lease | None:
        """The lease that stands; a restart of the container makes it void."""
        return self.lease if self.claim and self.lease and self.lease.restarts >= self.restarts else None

    @property
    def never_leased(self) -> bool:
        """Whether it is still unused."""
        return not self.claim

    @property
    def for_its_image(self) -> bool:
        """Whether it is there for its image alone (image_pulls)."""
        return self.made_for == leases.MadeFor.PRE_PULL

    @property
    def lost(self) -> bool:
        """Whether the pod has ended, or is about to be gone."""
        return self.deleting or self.ended


def read(pod: Object) -> SandboxPod:
    """Reads a pod; fields that are missing count as not there yet."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    backing = pod.get("backing") or {"name": meta["name"], "identity": meta["name"]}
    notes = meta.get("annotations") or {}
    container = _named(status.get("containerStatuses"), CONTAINER)
    state = container.get("state") or {}
    created = to_seconds(meta.get("creationTimestamp")) or 0.0
    begin = to_seconds(status.get("startTime")) or created
    claim = str(notes.get(labels.SANDBOX_CLAIM) or "")
    lease = leases.from_json(str(notes.get(labels.SANDBOX_LEASE) or "")) if claim else None
    version = str(meta.get("resourceVersion") or "")
    return SandboxPod(
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        pod_name=backing["name"],
        identity=backing["identity"],
        version=int(version) if version.isdigit() else 0,
        shape=str((meta.get("labels") or {}).get(labels.SANDBOX_SHAPE) or ""),
        asked=str(notes.get(labels.SANDBOX_IMAGE) or ""),
        image=str(_named(spec.get("containers"), CONTAINER).get("image") or ""),
        made_for=str(notes.get(labels.SANDBOX_MADE_FOR) or ""),
        reusable=spec.get("restartPolicy") == "Always",
        created=created,
        hard_stop=begin + float(spec.get("activeDeadlineSeconds") or 0),
        deleting=bool(meta.get("deletionTimestamp")),
        ended=phase(pod) in ("Succeeded", "Failed"),
        ip=str(status.get("podIP") or ""),
        held_up=condition(pod, "PodReadyToStartContainers").get("status") == "False",
        running="running" in state,
        started=to_seconds((state.get("running") or {}).get("startedAt")),
        restarts=int(container.get("restartCount") or 0),
        pulled=bool(container.get("imageID")),
        claim=claim,
        lease=lease,
        request=_request(str(notes.get(labels.SANDBOX_REQUEST) or "")) if claim else None,
        trouble=_trouble(pod),
        last=_last_end(container),
        clean=not (claim and lease is None)
        and (not container.get("restartCount") or _last_state(container).get("exitCode") == 0),
        disruption=_disruption(pod),
    )


def _request(text: str) -> SandboxRequest | None:
    try:
        return SandboxRequest.model_validate_json(text)
    except ValidationError:
        return None


def _trouble(pod: Object) -> Trouble | None:
    """What keeps a pod from running; None if it runs or is on its way."""
    status = pod.get("status") or {}
    if refusal := status.get("refusal"):  # instead of a pod: agent-sandbox could not make it
        return Trouble(refusal["reason"], refusal["message"], final=refusal["final"])
    if phase(pod) == "Failed" and status.get("reason"):
        return _pod_ended(status)
    if installer := _failed_init_container(pod):
        return Trouble(_NO_DAEMON, _sentence("the daemon could not be installed", installer), final=True)
    if stuck := stuck_container(pod):
        return _waiting(pod, *stuck)
    container = _named(status.get("containerStatuses"), CONTAINER)
    if end := (container.get("state") or {}).get("terminated"):
        return _exited(end)
    said = unschedulable(pod)
    return None if said is None else Trouble(Reason.UNSCHEDULABLE, f"no node takes the sandbox: {said}", final=False)


def _last_end(container: Object) -> Trouble:
    """Why the container that ran before the present one ended."""
    found = _exited(_last_state(container))
    if found.reason == Reason.EXITED:
        return Trouble(Reason.RESTARTED, f"{found.message}, and was restarted: its contents are lost", final=True)
    return found


def _exited(end: Object) -> Trouble:
    """What an ended container says."""
    reason = str(end.get("reason") or "")
    if reason in ("OOMKilled", "Evicted"):
        return Trouble(reason, f"the sandbox is gone: {_FIXES[reason]}", final=True)
    if (code := end.get("exitCode")) in _UNCOUNTED:
        said, fix = _UNCOUNTED[code]
        message = f"the sandbox filled disk that the kubelet doesn't count: {_printable(end) or said}; {fix}"
        return Trouble(Reason.UNCOUNTED_DISK, message, final=True)
    # A container that ran has written its message itself.
    if reason in _NEVER_RAN and _PROGRAM in str(end.get("message") or ""):
        message = _sentence("the daemon can't be started", end)
        return Trouble(_NO_DAEMON, f"{message}; {_NO_IMAGE_VOLUME}", final=True)
    return Trouble(Reason.EXITED, _sentence("the sandbox's container ended", end), final=True)


def _pod_ended(status: Object) -> Trouble:
    reason, message = str(status["reason"]), str(status.get("message") or "")
    if reason == "DeadlineExceeded":
        return Trouble(Reason.EXPIRED, "the pod has reached its activeDeadlineSeconds", final=True)
    fix = f"; {_FIXES[reason]}" if reason in _FIXES else ""
    return Trouble(reason, f"the sandbox is gone: {message or reason}{fix}", final=True)


def _waiting(pod: Object, one: Object, waiting: Object) -> Trouble:
    reason, said = str(waiting["reason"]), str(waiting.get("message") or "")
    if reason == "CrashLoopBackOff":
        return _last_end(one)
    if reason in _PULLING:
        lower = said.lower()
        throttled = any(word in lower for word in _THROTTLED)
        final = not throttled and any(word in lower for word in _FINAL_PULLS)
        message = f"image {one.get('image', '')} can't be pulled: {said}; {_PULL_FIX}"
        return Trouble(reason, message, final, throttled, image=True)
    fix = f"; {_FIXES[reason]}" if reason in _FIXES else ""
    if reason == "CreateContainerError" and any("image" in volume for volume in pod["spec"].get("volumes") or []):
        fix = f"; {_NO_IMAGE_VOLUME}"
    return Trouble(reason, f"container {one.get('name', '')}: {said or reason}{fix}", final=reason in _FIXES)


def _last_state(container: Object) -> Object:
    """How the container that ran before the present one ended."""
    return dict((container.get("lastState") or {}).get("terminated") or {})


def _disruption(pod: Object) -> str:
    """Why the cluster deletes the pod; empty if it doesn't."""
    found = condition(pod, "DisruptionTarget")
    return f"{found.get('reason', '')}: {found.get('message', '')}" if found.get("status") == "True" else ""


def _sentence(what: str, end: Object) -> str:
    more = _printable(end)
    text = f"{what} (exit code {end.get('exitCode')}, {end.get('reason') or 'no reason given'})"
    return f"{text}: {more}" if more else text


def _printable(end: Object) -> str:
    """A container's last message in one line: a sandbox writes it itself, and it ends up in the log."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(end.get("message") or "")).split())[-500:]


def _failed_init_container(pod: Object) -> Object | None:
    """How the first init container that failed for good ended."""
    for status, init in container_statuses(pod):
        end = (status.get("state") or {}).get("terminated")
        if init and end and end.get("exitCode"):
            return dict(end)
    return None


def _named(items: object, name: str) -> Object:
    """The container of that name, or its status; empty if there is none."""
    for one in items if isinstance(items, list) else []:
        if one.get("name") == name:
            return dict(one)
    return {}
