"""What all pods of a run have in common: restricted Pod Security, writable scratch, the run's settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymtrain_api import labels, names, wiring
from gymtrain_api.merge import merge
from gymtrain_api.spec import Inference, PodSettings
from gymtrain_api.spec.training import Trainer
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests import platform, tracing
from gymtrain_operator.manifests.context import PodSetAdmission, RunContext
from gymtrain_operator.manifests.gang import group_label, group_scheduler

_USER = 65532
# Of a container where a quota requires limits, and nobody has set its resources.
_LIMITS = {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "20Gi"}
_FIXED_IDS: Object = {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}

# Of pods whose end costs minutes of GPUs: neither the cluster autoscaler nor Karpenter ends them to save a node.
NOT_FOR_SAVING = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}

_HOME = f"{wiring.SCRATCH_DIR}/home"
_TMP = f"{wiring.SCRATCH_DIR}/tmp"  # noqa: S108 - in the pod's own volume

_SCRATCH = "scratch"
_RUN_CONFIG_MOUNT: Object = {"name": "run", "mountPath": wiring.RUN_CONFIG_DIR, "readOnly": True}
_ENV: list[Object] = [
    {"name": "HOME", "value": _HOME},
    {"name": "TMPDIR", "value": _TMP},
    {"name": "HF_HOME", "value": f"{wiring.SCRATCH_DIR}/huggingface"},
    {"name": "XDG_CACHE_HOME", "value": f"{wiring.SCRATCH_DIR}/cache"},
]


def container(
    run: RunContext,
    name: str,
    image: str,
    command: Sequence[str],
    *,
    mounts: Sequence[Object] = (),
    env: Sequence[Object] = (),
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    settings: PodSettings | None = None,
    gpu_limits: dict[str, str] | None = None,
    role: labels.Role | None = None,
    own_scratch: bool = False,
    direct: Sequence[str] = (),
    **more: Any,
) -> Object:
    """Builds a container under restricted Pod Security with the run's settings and scratch space mounted.

    `own_scratch`: no other container of the pod has its scratch space. Python, torch and Hugging Face's libraries run
    code that they find below HOME, so where one container runs others' code the next would, too.
    `direct`: hosts of the run that the container calls, and not through a proxy.
    `requests` stand unless `settings`, or the defaults for the main container of `role`, bring resources. To either are
    added GPUs, and of `limits` those that the namespace's quotas require: of resources that were set, the request.
    """
    resources: dict[str, Any] = {"requests": dict(requests or {"cpu": "20m", "memory": "128Mi"})}
    wanted = settings.resources if settings and settings.resources is not None else None
    if wanted is None and role is not None:
        wanted = run.applied.main_resources(role)
    limits = _LIMITS | (limits or {})
    if wanted is not None:
        resources = dict(wanted)
        limits |= resources.get("requests") or {}
    if gpu_limits:
        resources = merge({"limits": gpu_limits}, resources)
    resources = platform.with_required_limits(resources, run.applied, limits)
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": run.defaults.pull_policy,
        "command": list(command),
        "env": _one_of_each_name([*_ENV, *platform.env(run, direct), *(tracing.env(run, role) if role else []), *env]),
        "volumeMounts": [
            *_scratch_mounts(f"{_SCRATCH}-{name}" if own_scratch else _SCRATCH),
            _RUN_CONFIG_MOUNT,
            *platform.mounts(run.applied),
            *mounts,
        ],
        "resources": resources,
        # What a crashed container said last reaches the status even where it wrote no message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **more,
    }


def _scratch_mounts(volume: str) -> list[Object]:
    """Returns the mounts of scratch space. The folders of HOME and TMPDIR exist because they are mounted once more by
    subPath; /tmp is there for software that has the path built in."""
    return [
        {"name": volume, "mountPath": wiring.SCRATCH_DIR},
        {"name": volume, "mountPath": _HOME, "subPath": "home"},
        {"name": volume, "mountPath": "/tmp", "subPath": "tmp"},  # noqa: S108 - a mount, not a file
    ]


def _scratch_volumes(containers: Sequence[Object]) -> list[Object]:
    """Returns the volumes of those mounts."""
    mounts = [mount["name"] for one in containers for mount in one["volumeMounts"]]
    found = [name for name in mounts if name == _SCRATCH or name.startswith(f"{_SCRATCH}-")]
    return [{"name": name, "emptyDir": {}} for name in dict.fromkeys([_SCRATCH, *found])]


def _one_of_each_name(env: Sequence[Object]) -> list[Object]:
    """Returns the last of each name, as the kubelet would take it; the API server takes no name twice. Each stays where
    it was, since a value may refer to variables before it."""
    last = {item.get("name"): number for number, item in enumerate(env)}
    return [item for number, item in enumerate(env) if last[item.get("name")] == number]


def pod_template(
    run: RunContext,
    role: labels.Role,
    *,
    containers: Sequence[Object],
    init: Sequence[Object] = (),
    volumes: Sequence[Object] = (),
    pod_labels: dict[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    grace_seconds: int = 30,
    service_account: str | None = None,
    template: dict[str, Any] | None = None,
    pod_set: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Builds a pod template of the run, with what cluster and namespace have as defaults for the role, and then the
    user's partial `template`, merged over it.

    What can't be overridden: the labels by which Services, policies and the operator find the pod, and that it
    gets no token of its ServiceAccount; and what Kueue decided about its pod set (`pod_set`, the role where it isn't
    given), which is below both, as its flavors were chosen by what the template asks for.
    """
    own = labels.run_labels(run.name, role) | (pod_labels or {})
    spec: dict[str, Any] = {
        "enableServiceLinks": False,  # their variables would clash with settings of the servers
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            **({} if run.applied.user_ids == "Assigned" else _FIXED_IDS),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **group_scheduler(run, role),
        **more,
        "containers": list(containers),
        "volumes": [
            *_scratch_volumes([*containers, *init]),
            {"name": "run", "configMap": {"name": names.run_config(run.name)}},
            *platform.volumes(run.applied),
            *volumes,
        ],
    }
    if init:
        spec["initContainers"] = list(init)
    if run.spec.priority_class_name:
        spec["priorityClassName"] = run.spec.priority_class_name
    if account := service_account or run.spec.service_account_name:
        spec["serviceAccountName"] = account
    meta: dict[str, Any] = {"labels": own | group_label(run, role)} | (
        {"annotations": dict(annotations)} if annotations else {}
    )
    merged = merge({"metadata": meta, "spec": spec}, run.applied.pod_template(role))
    merged = merge(merged, template or {})
    merged["metadata"]["labels"] = merged["metadata"].get("labels", {}) | own
    merged["spec"]["automountServiceAccountToken"] = False
    admission = run.admission.get(pod_set or str(role))
    return _admitted(merged, admission) if admission else merged


def _admitted(template: dict[str, Any], admission: PodSetAdmission) -> dict[str, Any]:
    """Returns the template with what Kueue adds to it."""
    meta, spec = dict(template["metadata"]), dict(template["spec"])
    for key, added in (("labels", admission.labels), ("annotations", admission.annotations)):
        if added:
            meta[key] = (meta.get(key) or {}) | dict(added)
    if admission.node_selector:
        spec["nodeSelector"] = (spec.get("nodeSelector") or {}) | dict(admission.node_selector)
    known = list(spec.get("tolerations") or [])
    if added_tolerations := [dict(one) for one in admission.tolerations if one not in known]:
        spec["tolerations"] = known + added_tolerations
    if admission.gates:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), *({"name": gate} for gate in admission.gates)]
    return template | {"metadata": meta, "spec": spec}


def gpu_limits(run: RunContext, part: Inference | Trainer) -> dict[str, str]:
    """Returns the limit by which pods get their GPUs; none where a resource claim of the template brings them."""
    names = (part.gpu_resource_name, run.applied.gpu_resource_name, "nvidia.com/gpu")
    resource = next(name for name in names if name is not None)
    return {resource: str(part.gpus)} if part.gpus and resource else {}


def shared_memory() -> tuple[Object, Object]:
    """Returns volume and mount of /dev/shm in memory: torch's processes share tensors there, and the runtime's
    default of 64 MiB is too small."""
    mount = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - a mount, not a file
    return {"name": "shm", "emptyDir": {"medium": "Memory"}}, mount


def secret_env(name: str, secret: str, key: str) -> Object:
    """Returns an environment variable from a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
