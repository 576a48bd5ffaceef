"""What is kept of an object of the API server: what is read here, and no more.

Observations of all runs that go on are kept, and so is what they own; most of a Pod or a Deployment as it is served
is `managedFields` and the pod template. To read another field, add it to the shapes below: the tests of the
plan see trimmed objects only, and miss it.
"""

from collections.abc import Mapping
from typing import Any

from gymtrain_api import coscheduling
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.manifests.config_maps import PREFLIGHT_KEY, RUN_KEY

type _Shape = Mapping[str, "_Shape"] | None
"""The keys of a mapping, or of each mapping in a list, with what is kept of their values; None: all of it."""

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA: dict[str, _Shape] = dict.fromkeys(
    (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "labels",
        "annotations",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
    )
)
_CONDITIONS: _Shape = dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"))
_CONTAINERS: _Shape = dict.fromkeys(("name", "ready", "started", "restartCount", "state", "lastState"))
_POD: dict[str, _Shape] = {
    "spec": {"nodeName": None, "restartPolicy": None, "containers": {"name": None}},
    "status": {
        "phase": None,
        "reason": None,
        "message": None,
        "podIP": None,
        "conditions": _CONDITIONS,
        "initContainerStatuses": _CONTAINERS,
        "containerStatuses": _CONTAINERS,
    },
}
# Who else wrote the pod template, as `reconcile.writes` asks.
_WRITERS: _Shape = {"manager": None, "subresource": None, "fieldsV1": {"f:spec": {"f:template": {}}}}
_GROUP_WRITERS: _Shape = {
    "manager": None,
    "subresource": None,
    "fieldsV1": {"f:spec": {"f:leaderWorkerTemplate": {}}},
}
# The images that a run without a record of them has used so far, as `reconcile.upgrades` asks.
_IMAGES: dict[str, _Shape] = {
    "spec": {"containers": {"name": None, "image": None, "env": {"name": None, "value": None}}}
}
# And whether its pods are placed together.
_SERVERS: _Shape = _IMAGES | {"metadata": {"labels": {coscheduling.POD_GROUP_LABEL: None}}}
_SHAPES: Mapping[str, _Shape] = {
    kinds.POD.name: _POD | {"metadata": _METADATA},
    kinds.DEPLOYMENT.name: {
        "metadata": _METADATA | {"managedFields": _WRITERS},
        "spec": {"replicas": None, "template": _SERVERS},
        "status": None,
    },
    kinds.LEADER_WORKER_SET.name: {
        "metadata": _METADATA | {"managedFields": _GROUP_WRITERS},
        "spec": {"replicas": None, "leaderWorkerTemplate": {"leaderTemplate": _SERVERS}},
        "status": None,
    },
    kinds.JOB.name: {"metadata": _METADATA, "spec": {"template": _IMAGES}, "status": None},
    kinds.POD_GROUP.name: {"metadata": _METADATA, "spec": {"minMember": None}},
    kinds.RESOURCE_QUOTA.name: {"metadata": _METADATA, "spec": {"hard": None}},
    kinds.WORKLOAD.name: {
        "metadata": _METADATA,
        "spec": {
            "queueName": None,
            "active": None,
            "priority": None,
            "priorityClassRef": None,
            "podSets": {"name": None, "count": None, "minCount": None, "topologyRequest": None},
        },
        "status": None,
    },
    kinds.CONFIG_MAP.name: {"metadata": _METADATA, "data": {PREFLIGHT_KEY: None, RUN_KEY: None}},
}
_OTHERS: _Shape = {"metadata": _METADATA, "status": None}


def trimmed(kind: Kind, item: Object) -> Object:
    """Copies of an object that the operator made what is read of it."""
    kept: Object = _cut(item, _SHAPES.get(kind.name, _OTHERS))
    kept["kind"] = kind.name
    return kept


def trimmed_run(found: Object) -> Object:
    """Returns a run without the record of who wrote what, and without the copy of itself that `kubectl apply`
    leaves."""
    meta = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in (meta.get("annotations") or {}):
        meta["annotations"] = {k: v for k, v in meta["annotations"].items() if k != _LAST_APPLIED}
    return found | {"metadata": meta}


def _cut(value: Any, shape: _Shape) -> Any:
    if shape is None:
        return value
    if isinstance(value, list):
        return [_cut(item, shape) for item in value]
    if isinstance(value, dict):
        return {key: _cut(value[key], inner) for key, inner in shape.items() if key in value}
    return value
