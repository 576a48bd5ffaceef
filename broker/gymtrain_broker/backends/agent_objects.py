"""Objects of sandboxes that agent-sandbox makes: what is written, and how a SandboxClaim and its pod are read as one.

    SandboxTemplate ◄── SandboxWarmPool (of 0) ◄── SandboxClaim ──► Sandbox ──► pod
    one of each for all sandboxes of a shape        one a sandbox    agent-sandbox's own

The SandboxClaim carries what a bare pod would: labels, the lease, the end of its life. Pods of one template are the
same, so none can be given its token: the init container makes its digest, from the run's token and the pod's uid.
"""

import hashlib
import json

from gymtrain_api import agent_sandbox, labels, names
from gymtrain_api.sandboxes import (
    DAEMON_DIR,
    ENV_DAEMON_TOKEN_FILE,
    ENV_INSTALL_IDENTITY,
    ENV_INSTALL_KEY,
    TOKEN_FILE,
    Reason,
    SandboxRequest,
)
from gymtrain_api.times import to_seconds, to_text
from gymtrain_broker.objects import sandbox_pod
from gymtrain_broker.objects.leases import Lease, MadeFor, lease_annotations
from gymtrain_broker.policy.shapes import PodShape, rewritten
from gymtrain_broker.settings import Settings
from gymtrain_kube.objects import Object

_TOKEN_KEY = "token"  # noqa: S105  of the broker's Secret
# What a SandboxClaim says while its sandbox is on its way.
_ON_ITS_WAY = {"DependenciesNotReady", "SandboxNotReady", "SandboxMissing", "SandboxCreatePending", "AdoptionConflict"}
_FINAL = ("is invalid", "forbidden")


def template(settings: Settings, shape: PodShape) -> Object:
    """The SandboxTemplate of a shape. Its name changes with its content, and with the run."""
    spec = sandbox_pod.for_daemon(
        settings, shape.body["spec"], {"name": ENV_DAEMON_TOKEN_FILE, "value": f"{DAEMON_DIR}/{TOKEN_FILE}"}
    )
    spec["initContainers"] = [_with_key(settings, one) for one in spec["initContainers"]]
    meta = shape.body["metadata"]
    own = sandbox_pod.pod_labels(settings.run) | {labels.SANDBOX_SHAPE: shape.key}
    content = {
        "podTemplate": {
            "metadata": {"labels": meta["labels"] | own, "annotations": meta["annotations"]},
            "spec": spec,
        },
        "networkPolicyManagement": "Unmanaged",  # the run has its own fences
        "service": False,
    }
    text = json.dumps([settings.uid, content], sort_keys=True, separators=(",", ":"))
    name = names.sandbox_shape(settings.run, hashlib.sha256(text.encode()).hexdigest()[:16])
    return _object(settings, agent_sandbox.TEMPLATE, name, own, {}, content)


def pool(settings: Settings, made_from: Object) -> Object:
    """The SandboxWarmPool over a template: a SandboxClaim can't do without, but nothing is kept in it."""
    meta = made_from["metadata"]
    spec = {"replicas": 0, "sandboxTemplateRef": {"name": meta["name"]}}
    return _object(settings, agent_sandbox.POOL, meta["name"], meta["labels"], {}, spec)


def sandbox_claim(
    settings: Settings,
    shape: PodShape,
    image: str,
    name: str,
    pool_name: str,
    now: float,
    *,
    made_for: MadeFor,
    lease: Lease | None,
    request: SandboxRequest | None,
) -> Object:
    """The SandboxClaim of one sandbox. With a lease it belongs to that request from its first moment.

    No variables: agent-sandbox would then start it cold though its pool has pods.
    """
    annotations = {labels.SANDBOX_IMAGE: image, labels.SANDBOX_MADE_FOR: str(made_for), labels.SANDBOX_CLAIM: ""}
    if lease is not None and request is not None:
        annotations |= lease_annotations(lease, request)
    end = to_text(now + sandbox_pod.life_seconds(settings, lease))
    own = sandbox_pod.pod_labels(settings.run) | {labels.SANDBOX_SHAPE: shape.key}
    spec = {
        "warmPoolRef": {"name": pool_name},
        "lifecycle": {"shutdownTime": end, "shutdownPolicy": "Delete"},
    }
    return _object(settings, agent_sandbox.CLAIM, name, own, annotations, spec)


def pod_of(sandbox_claim: Object) -> str:
    """Name of the pod of a SandboxClaim, as agent-sandbox says it, or as it will be where a new one is made."""
    sandbox = (sandbox_claim.get("status") or {}).get("sandbox") or {}
    return str(sandbox.get("name") or sandbox_claim["metadata"]["name"])


def replaced(sandbox_claim: Object, pod: Object) -> bool:
    """Whether the pod has replaced the one that was ready first, which agent-sandbox doesn't report."""
    first_ready = to_seconds((sandbox_claim["metadata"].get("annotations") or {}).get(agent_sandbox.FIRST_READY))
    made = to_seconds(pod["metadata"].get("creationTimestamp"))
    return first_ready is not None and made is not None and made > first_ready


def joined(settings: Settings, sandbox_claim: Object, pod: Object | None, *, lost: bool) -> Object:
    """A SandboxClaim and its pod as one sandbox (see `backend`). `lost`: its pod is gone, and what it held with it."""
    meta = dict(sandbox_claim["metadata"])
    asked = (meta.get("annotations") or {}).get(labels.SANDBOX_IMAGE, "")
    image = rewritten(asked, settings.spec.image_rewrites)
    spec: Object = {"containers": [{"name": sandbox_pod.CONTAINER, "image": image}], "restartPolicy": "Never"}
    status: Object = {}
    backing = {"name": "", "identity": ""}
    if lost:
        message = "someone else deleted its pod, and agent-sandbox may have made another"
        status = {"phase": "Failed", "reason": Reason.POD_DELETED, "message": message}
    elif pod is not None:
        status = dict(pod.get("status") or {})
        backing = {"name": pod["metadata"]["name"], "identity": str(pod["metadata"].get("uid") or "")}
        if going := pod["metadata"].get("deletionTimestamp"):
            meta.setdefault("deletionTimestamp", going)
    elif refusal := _refusal(sandbox_claim):
        status = {"refusal": refusal}
    begin = to_seconds(status.get("startTime")) or to_seconds(meta.get("creationTimestamp")) or 0.0
    end = to_seconds(((sandbox_claim.get("spec") or {}).get("lifecycle") or {}).get("shutdownTime")) or 0.0
    return {
        "metadata": meta,
        "spec": spec | {"activeDeadlineSeconds": max(0.0, end - begin)},
        "status": status,
        "backing": backing,
    }


def _refusal(sandbox_claim: Object) -> Object | None:
    """Why agent-sandbox can't make the pod; None if nothing is wrong."""
    for condition in (sandbox_claim.get("status") or {}).get("conditions") or []:
        reason, said = str(condition.get("reason") or ""), str(condition.get("message") or "")
        if condition.get("type") == "Ready" and condition.get("status") == "False" and reason not in _ON_ITS_WAY:
            final = any(word in said for word in _FINAL) and "exceeded quota" not in said
            message = f"agent-sandbox can't make the sandbox: {said or reason}. See spec.sandboxes"
            return {"reason": str(Reason.REJECTED) if final else reason, "message": message, "final": final}
    return None


def _with_key(settings: Settings, container: Object) -> Object:
    """The init container with what it makes the token's digest from. It ends before anything of the task begins."""
    if container["name"] != sandbox_pod.INSTALLER:
        return container
    secret = {"name": settings.token_secret, "key": _TOKEN_KEY}
    own: list[Object] = [
        {"name": ENV_INSTALL_KEY, "valueFrom": {"secretKeyRef": secret}},
        {"name": ENV_INSTALL_IDENTITY, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]
    return container | {"env": [*(container.get("env") or []), *own]}


def _object(settings: Settings, kind: str, name: str, own_labels: Object, annotations: Object, spec: Object) -> Object:
    meta: Object = {
        "name": name,
        "namespace": settings.namespace,
        "labels": own_labels,
        "ownerReferences": [sandbox_pod.owner(settings)],
    }
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": agent_sandbox.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
