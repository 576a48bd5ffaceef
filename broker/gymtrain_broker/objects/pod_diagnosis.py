"""What ails a pod, in words that help."""

from dataclasses import dataclass
from typing import Any

from gymtrain_api.pods import condition, stuck_container, unschedulable
from gymtrain_api.sandboxes import DAEMON, DAEMON_DIR, Reason
from gymtrain_broker.objects.sandbox_pod import CONTAINER

type Object = dict[str, Any]

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


def trouble(pod: Object) -> Trouble | None:
    """What ails it; None where it runs or is on its way."""
    status = pod.get("status") or {}
    if refusal := status.get("refusal"):  # instead of a pod: agent-sandbox could not make it
        return Trouble(refusal["reason"], refusal["message"], final=refusal["final"])
    if status.get("phase") == "Failed" and status.get("reason"):
        return _pod_ended(status)
    installer = _first_ended(status.get("initContainerStatuses"))
    if installer:
        return Trouble(_NO_DAEMON, _sentence("the daemon could not be put in", installer), final=True)
    if stuck := stuck_container(pod):
        return _waiting(pod, *stuck)
    container = named(status.get("containerStatuses"), CONTAINER)
    if end := (container.get("state") or {}).get("terminated"):
        return exited(end)
    said = unschedulable(pod)
    return None if said is None else Trouble(Reason.UNSCHEDULABLE, f"no node takes the sandbox: {said}", final=False)


def last_end(container: Object) -> Trouble:
    """Why the container that ran before the present one ended."""
    found = exited(last_state(container))
    if found.reason == Reason.EXITED:
        return Trouble(Reason.RESTARTED, f"{found.message}, and is started anew: all it held is gone", final=True)
    return found


def exited(end: Object) -> Trouble:
    """What an ended container says."""
    reason = str(end.get("reason") or "")
    if reason in ("OOMKilled", "Evicted"):
        return Trouble(reason, f"the sandbox is gone: {_FIXES[reason]}", final=True)
    if _PROGRAM in str(end.get("message") or ""):
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
        return last_end(one)
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


def last_state(container: Object) -> Object:
    """How the container that ran before the present one ended."""
    return dict((container.get("lastState") or {}).get("terminated") or {})


def disruption(pod: Object) -> str:
    """Why the cluster deletes the pod; empty where it doesn't."""
    found = condition(pod, "DisruptionTarget")
    return f"{found.get('reason', '')}: {found.get('message', '')}" if found.get("status") == "True" else ""


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


def named(items: object, name: str) -> Object:
    """The container of that name, or its status; empty where there is none."""
    for one in items if isinstance(items, list) else []:
        if one.get("name") == name:
            return dict(one)
    return {}
