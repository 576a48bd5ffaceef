"""The pod of a sandbox: the task's image, the daemon put in, and no more rights than it needs.

Where a pod is reused, its container is restarted; what outlives the container is emptied by the daemon, and where it
can't be, the pod is not reused.
"""

from gymtrain_api import labels
from gymtrain_api.merge import merge
from gymtrain_api.sandboxes import (
    DAEMON,
    DAEMON_DIR,
    ENV_DAEMON_DISK,
    ENV_DAEMON_PORT,
    ENV_DAEMON_TOKEN_FILE,
    ENV_DAEMON_TOKEN_SHA256,
    ENV_DAEMON_WIPE,
    ENV_DAEMON_WIPE_IPC,
    SandboxRequest,
    SandboxResources,
    sandbox_token,
    token_digest,
)
from gymtrain_broker.objects import quantities
from gymtrain_broker.objects.leases import Lease, MadeFor, lease_annotations
from gymtrain_broker.settings import Settings
from gymtrain_kube.objects import Object

CONTAINER = "sandbox"
INSTALLER = "sandboxd"
_VOLUME = "gymtrain"
_USER = 65532
_SLACK_SECONDS = 300  # the broker ends sandboxes; the pod's own deadline is for when nobody else does
_ROOT_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"]
# Mounts of the pod. The second shows what is in the IPC namespace, but for the objects of System V.
_SHARED = ("/dev/shm", "/dev/mqueue")  # noqa: S108  names


def body(settings: Settings, image: str, resources: SandboxResources | None, *, reuse: bool) -> Object:
    """Spec of all pods of one shape, with the user's template merged over it."""
    spec = settings.spec
    wanted = quantities.requirements(spec.resources, resources)
    made: Object = {
        "enableServiceLinks": False,  # their variables would tell commands what runs in the namespace
        "terminationGracePeriodSeconds": 2,  # nothing in a sandbox is worth saving
        "securityContext": _pod_security(root=spec.root),
        "containers": [_container(image, wanted, root=spec.root)],
        **_with_daemon(settings),
    }
    if spec.network.mode == "Closed":
        # A lookup that no policy lets out ends after many seconds; without a name server it ends at once.
        made |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    optional = {
        "runtimeClassName": spec.runtime_class_name,
        "hostUsers": _host_users(settings),
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets] or None,
    }
    made |= {name: value for name, value in optional.items() if value is not None}
    template = spec.template or {}
    merged = merge({"metadata": {}, "spec": made}, template)
    return {
        "metadata": {key: merged["metadata"].get(key) or {} for key in ("labels", "annotations")},
        "spec": _kept(merged["spec"], reuse=reuse),
    }


def pod(
    settings: Settings,
    shape_key: str,
    image: str,
    shape_body: Object,
    name: str,
    *,
    made_for: MadeFor,
    lease: Lease | None = None,
    request: SandboxRequest | None = None,
) -> Object:
    """The manifest of one pod. With a lease it belongs to that request from its first moment."""
    digest = token_digest(sandbox_token(settings.run_token, name))
    spec = for_daemon(settings, shape_body["spec"], {"name": ENV_DAEMON_TOKEN_SHA256, "value": digest})
    spec["activeDeadlineSeconds"] = life_seconds(settings, None if spec["restartPolicy"] == "Always" else lease)
    meta = shape_body["metadata"]
    annotations = {labels.SANDBOX_IMAGE: image, labels.SANDBOX_MADE_FOR: str(made_for), labels.SANDBOX_CLAIM: ""}
    if lease is not None and request is not None:
        annotations |= lease_annotations(lease, request)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": meta["labels"] | pod_labels(settings.run) | {labels.SANDBOX_SHAPE: shape_key},
            "annotations": meta["annotations"] | annotations,
            "ownerReferences": [owner(settings)],
        },
        "spec": spec,
    }


def for_daemon(settings: Settings, pod_spec: Object, token: Object) -> Object:
    """The spec with the daemon's variables. `token` is the one that says how it knows its token."""
    spec = pod_spec | {"containers": [dict(one) for one in pod_spec["containers"]]}
    task = next(one for one in spec["containers"] if one["name"] == CONTAINER)
    own_env = [
        token,
        {"name": ENV_DAEMON_PORT, "value": str(settings.daemon_port)},
        *_wipe_variables(spec, task),
        *_disk_variable(task),
    ]
    taken = {ENV_DAEMON_TOKEN_SHA256, ENV_DAEMON_TOKEN_FILE, ENV_DAEMON_DISK, *(one["name"] for one in own_env)}
    task["env"] = [one for one in task.get("env") or [] if one.get("name") not in taken] + own_env
    return spec


def made_here(settings: Settings, pod: Object) -> bool:
    """Whether a pod was made with this run's token: its daemon asks for the token that belongs to its name. Labels,
    annotations and owners anyone can write who may create pods."""
    digest = token_digest(sandbox_token(settings.run_token, pod["metadata"]["name"]))
    containers = (pod.get("spec") or {}).get("containers") or []
    env = [one for c in containers if c.get("name") == CONTAINER for one in c.get("env") or []]
    told = [one.get("value") for one in env if one.get("name") == ENV_DAEMON_TOKEN_SHA256]
    return told == [digest]


def owner(settings: Settings) -> Object:
    """Returns the run as owner of what is made for it."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "name": settings.run,
        "uid": settings.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def pod_labels(run: str) -> dict[str, str]:
    """Labels of every sandbox pod of a run."""
    return labels.run_labels(run, labels.Role.SANDBOX) | {labels.MANAGED_BY: labels.BROKER_VALUE}


def selector(run: str) -> str:
    """Returns the selector of all sandbox pods of a run, whatever made them."""
    return f"{labels.RUN}={run},{labels.ROLE}={labels.Role.SANDBOX}"


def life_seconds(settings: Settings, lease: Lease | None) -> int:
    """How long it may live at most.

    One that is leased later may be free as long as a lease before its turn comes.
    """
    spec = settings.spec
    if lease is not None:
        return round(lease.start_seconds + lease.ttl) + _SLACK_SECONDS
    return spec.start_timeout_seconds + 2 * spec.timeout_seconds + _SLACK_SECONDS


def _host_users(settings: Settings) -> bool | None:
    """False for a user namespace. By default root gets one where the cluster has them, but for pods of a RuntimeClass:
    those have a kernel of their own, which may have none."""
    spec = settings.spec
    if spec.host_users is None and spec.root and settings.user_namespaces and spec.runtime_class_name is None:
        return False
    return spec.host_users


def _pod_security(*, root: bool) -> Object:
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    if root:
        return {"runAsUser": 0, "runAsGroup": 0, **seccomp}
    return {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER, **seccomp}


def _with_daemon(settings: Settings) -> Object:
    """What brings the daemon: its image as a volume where the cluster has those, else an init container that copies it.

    With agent-sandbox always the latter: it makes the token's digest too.
    """
    if settings.image_volumes and settings.backend == "Pod":
        image = {"reference": settings.daemon_image, "pullPolicy": settings.pull_policy}
        return {"volumes": [{"name": _VOLUME, "image": image}]}
    empty = {"name": _VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}
    return {"initContainers": [_installer(settings)], "volumes": [empty]}


def _installer(settings: Settings) -> Object:
    # Whoever limits the CPU of all sandboxes may do so for a quota, which admits no pod with a container without.
    own = (settings.spec.resources or {}).get("limits") or {}
    limits = {"memory": "64Mi"} | ({"cpu": own["cpu"]} if "cpu" in own else {})
    return {
        "name": INSTALLER,
        "image": settings.daemon_image,
        "imagePullPolicy": settings.pull_policy,
        "command": [f"/{DAEMON}", "install", DAEMON_DIR],
        "volumeMounts": [{"name": _VOLUME, "mountPath": DAEMON_DIR}],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _container(image: str, resources: Object, *, root: bool) -> Object:
    capabilities: Object = {"drop": ["ALL"]}
    if root:
        capabilities["add"] = _ROOT_CAPABILITIES
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": _VOLUME, "mountPath": DAEMON_DIR, "readOnly": True}],
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": capabilities},
    }


def _kept(spec: Object, *, reuse: bool) -> Object:
    """Settings that a template can't change, because the broker relies on them."""
    containers = [dict(one) for one in spec["containers"]]
    task = next(one for one in containers if one["name"] == CONTAINER)
    task["command"] = [f"{DAEMON_DIR}/{DAEMON}", "serve"]
    task.pop("args", None)
    task.pop("terminationMessagePath", None)  # the daemon watches the usual one, which commands can fill
    reuse = reuse and _all_wiped(spec, task)
    kept = {"automountServiceAccountToken": False, "restartPolicy": "Always" if reuse else "Never"}
    return spec | kept | {"containers": containers}


def _wipe_variables(spec: Object, task: Object) -> list[Object]:
    """Variables that tell the daemon what to empty at its start and at its end."""
    return [
        {"name": ENV_DAEMON_WIPE, "value": ":".join(_wiped_folders(spec, task))},
        {"name": ENV_DAEMON_WIPE_IPC, "value": "0" if spec.get("hostIPC") else "1"},
    ]


def _disk_variable(task: Object) -> list[Object]:
    """The variable that limits what the daemon counts; none without a limit: the kubelet would say the node's size."""
    limits = (task.get("resources") or {}).get("limits") or {}
    if not quantities.number(limits.get("ephemeral-storage", 0)):
        return []
    source = {"containerName": CONTAINER, "resource": "limits.ephemeral-storage"}
    return [{"name": ENV_DAEMON_DISK, "valueFrom": {"resourceFieldRef": source}}]


def _all_wiped(spec: Object, task: Object) -> bool:
    """Whether nothing of a task is left once its container was restarted.

    Root can write /etc/hosts and its like, which are the pod's; the node's IPC namespace is not ours to empty.
    """
    contexts = (task.get("securityContext") or {}, spec.get("securityContext") or {})
    user = next((one["runAsUser"] for one in contexts if one.get("runAsUser") is not None), 0)
    return user != 0 and not spec.get("hostIPC")


def _wiped_folders(spec: Object, task: Object) -> list[str]:
    """Folders that the task can write and that a restart of its container leaves as they are."""
    kept = {one["name"] for one in spec.get("volumes") or [] if "emptyDir" in one}
    mounts = task.get("volumeMounts") or []
    own = [one["mountPath"] for one in mounts if one.get("name") in kept and not one.get("readOnly")]
    shared = () if spec.get("hostIPC") else _SHARED  # else they are the node's
    return [*own, *(one for one in shared if one not in own)]
