"""What the objects of a run have in common: metadata, owner, the hash of what they were made from; and the form of
Services and Deployments."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from gymtrain_api import labels, leader_worker_set
from gymtrain_api.merge import merge
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext

_LONGEST_AFFINITY_SECONDS = 86400  # the API server takes no more


def metadata(run: RunContext, name: str, role: labels.Role | None = None, **more: str) -> Object:
    """Returns metadata of an object of the run, owned by it. `more` are further labels by constant's name."""
    return unowned_metadata(run, name, role, **more) | {"ownerReferences": [owner_reference(run.name, run.uid)]}


def unowned_metadata(run: RunContext, name: str, role: labels.Role | None = None, **more: str) -> Object:
    """Returns the same for an object that outlives the run."""
    return {"name": name, "namespace": run.namespace, "labels": labels.run_labels(run.name, role) | more}


def owner_reference(run: str, uid: str) -> Object:
    """Returns the reference by which the garbage collector deletes an object with its run.

    The owner is the controller, so nobody else adopts the object, but it doesn't block the owner's
    deletion: that would need a right on the run's finalizers, and nothing here has to wait.
    """
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "name": run,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def hash_input(part: BaseModel, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Returns what of a part of the spec goes into a hash: only what differs from the defaults. So a field that a later
    release adds changes no hash, and spelling a default out is no change either."""
    return part.model_dump(mode="json", exclude_defaults=True, exclude=set(without))


def digest(*parts: object) -> str:
    """Returns a short hash of JSON-like values; the order of mappings doesn't matter."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamped(manifest: Object, config_hash: str) -> Object:
    """Returns the object with the hash of what it was made from as an annotation."""
    meta = manifest["metadata"]
    assert isinstance(meta, dict)
    annotations = dict(meta.get("annotations") or {}) | {labels.CONFIG_HASH: config_hash}
    return manifest | {"metadata": meta | {"annotations": annotations}}


def config_hash(manifest: Object) -> str:
    """Returns the hash that an object carries; empty if it has none."""
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(labels.CONFIG_HASH, ""))


def service(
    run: RunContext,
    name: str,
    role: labels.Role,
    ports: dict[str, int],
    *,
    selector: dict[str, str] | None = None,
    headless: bool = False,
    sticky: bool = False,
) -> Object:
    """Builds a Service over the pods of a role.

    Args:
        ports: numbers by name, the same on the pods.
        selector: labels that further narrow the pods.
        headless: one DNS record a pod, ready or not, instead of a virtual IP.
        sticky: a client pod always reaches the same server pod, as long as it lives.
    """
    narrowed = selector or {}
    spec: dict[str, Any] = {
        "selector": labels.run_labels(run.name, role) | narrowed,
        "ports": [{"name": port, "port": number, "targetPort": number} for port, number in ports.items()],
    }
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    if sticky:
        spec |= {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": _LONGEST_AFFINITY_SECONDS}},
        }
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(run, name, role, **narrowed),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))


def deployment(
    run: RunContext,
    name: str,
    role: labels.Role,
    template: dict[str, Any],
    *,
    replicas: int,
    inputs: object,
    selector: dict[str, str] | None = None,
    recreate: bool = False,
) -> Object:
    """Builds a Deployment whose pods are replaced when `inputs` change, and only then.

    `inputs` is what of the spec and of the resolved config the pods are made from. Its hash, not that of
    the template, says whether the Deployment is up to date: another release of the operator builds
    another template from the same inputs, and must not restart a running server.
    """
    narrowed = selector or {}
    stamp = digest(inputs)
    template = merge(template, {"metadata": {"annotations": {labels.CONFIG_HASH: stamp}}})
    strategy: dict[str, Any] = {"type": "Recreate"}
    if not recreate:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(run, name, role, **narrowed),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels.run_labels(run.name, role) | narrowed},
            "strategy": strategy,
            "template": template,
        },
    }
    return stamped(manifest, stamp)


def disruption_budget(run: RunContext, name: str, role: labels.Role) -> Object:
    """Builds a PodDisruptionBudget that lets one pod of a role be evicted at a time, and any that isn't ready: a run
    that can't get on must not keep a node from being drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(run, name, role),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels.run_labels(run.name, role)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def pod_groups(
    run: RunContext,
    name: str,
    role: labels.Role,
    leader: dict[str, Any],
    worker: dict[str, Any],
    *,
    replicas: int,
    size: int,
    inputs: object,
) -> Object:
    """Builds a LeaderWorkerSet: `replicas` groups of `size` pods, one of them made from `leader`. As with a Deployment,
    pods are replaced when `inputs` change, and only then: one group after the other, within the room that it has."""
    stamp = digest(inputs)
    leader, worker = (
        merge(one, {"metadata": {"annotations": {labels.CONFIG_HASH: stamp}}}) for one in (leader, worker)
    )
    manifest = {
        "apiVersion": leader_worker_set.API_VERSION,
        "kind": leader_worker_set.KIND,
        "metadata": metadata(run, name, role),
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",  # no leader gets ready without its workers
            "leaderWorkerTemplate": {
                "size": size,
                # The processes of a group start together, or not at all: one that was started again can't join.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }
    return stamped(manifest, stamp)
