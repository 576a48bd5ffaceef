"""Kueue's Workload of a run: all its pods as pod sets, which are admitted, evicted and queued again as one (decision
41).

    trainer             one pod a node
    inference           vLLM servers, or the leaders of their groups
    inference-worker    the other pods of those groups
    gym-head, gym-model, gym-agent, gym-resources, gym-ray
                        Gym servers of one kind, which need the same
    gym-server-NAME     Gym servers with the same resources or template of their own, by the first of them
    gateway, broker

A pod set's name is known from the spec and preflight's verdict alone: another release of the operator finds what Kueue
decided about it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from gymtrain_api import kueue, labels, leader_worker_set, names
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.broker import broker_objects
from gymtrain_operator.manifests.context import GymServers, RunContext
from gymtrain_operator.manifests.gateway import gateway_objects
from gymtrain_operator.manifests.gym import gym_objects, gym_pod_sets, gym_server_kinds
from gymtrain_operator.manifests.inference import inference_objects
from gymtrain_operator.manifests.objects import digest, metadata, stamped
from gymtrain_operator.manifests.trainer import trainer_job

TRAINER, INFERENCE, GATEWAY = str(labels.Role.TRAINER), str(labels.Role.INFERENCE), str(labels.Role.GATEWAY)
_WORKERS, _BROKER = str(labels.Role.INFERENCE_WORKER), str(labels.Role.BROKER)

_RANK = "batch.kubernetes.io/job-completion-index"
# What quota and placement look at; the rest of a template, with its variables, is nobody's business there.
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")
_POD_FIELDS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "resources",
    "resourceClaims",
    "schedulerName",
)


@dataclass(frozen=True)
class Priority:
    """The run's place among others.

    Attributes:
        kind, name: of the class.
        value: of the class, as it was read.
    """

    kind: str
    name: str
    value: int


def workload(run: RunContext, gym: GymServers, queue: str, priority: Priority | None) -> Object:
    """Builds the Workload.

    It has no finalizer: one would keep it, and its quota, after a run that was deleted while no operator ran.
    """
    spec: Object = {"queueName": queue, "podSets": pod_sets(run, gym), **priority_fields(priority)}
    meta = metadata(run, names.workload(run.name))
    meta["labels"] |= {kueue.JOB_UID_LABEL: run.uid}
    return stamped(
        {"apiVersion": kueue.API_VERSION, "kind": kueue.WORKLOAD, "metadata": meta, "spec": spec}, needs_hash(run, gym)
    )


def priority_fields(priority: Priority | None) -> Object:
    """Returns the fields of a Workload's spec that say how urgent it is."""
    if priority is None:
        return {}
    group = kueue.GROUP if priority.kind == kueue.PRIORITY_CLASS else "scheduling.k8s.io"
    return {
        "priorityClassRef": {"group": group, "kind": priority.kind, "name": priority.name},
        "priority": priority.value,
    }


def pod_sets(run: RunContext, gym: GymServers) -> list[Object]:
    """Builds the pod sets. The templates are those that the pods are made from."""
    found: dict[str, Object] = {}
    for name, count, template in _templates(run, gym):
        if name in found:
            found[name]["count"] += count
        else:
            found[name] = _pod_set(name, count, template)
    if run.spec.inference.min_replicas is not None:
        found[INFERENCE]["minCount"] = min(run.spec.inference.min_replicas, run.spec.inference.replicas)
    return list(found.values())


def needs_hash(run: RunContext, gym: GymServers) -> str:
    """Returns the hash of what a pod of each set needs, as the spec says it: another number of pods is no other need,
    and another release's defaults are none."""
    spec = run.spec
    every = {"resources": spec.gym.resources, "template": spec.gym.template}
    servers = {
        name: (pod_set, _set_of(spec.gym.servers.get(name), "resources", "template"))
        for name, pod_set in gym_pod_sets(run, gym).items()
    }
    return digest(
        _set_of(spec.trainer, "nodes", "gpus", "gpu_resource_name", "resources", "template"),
        _set_of(spec.inference, "nodes", "gpus", "gpu_resource_name", "resources", "template"),
        _set_of(spec.gateway, "resources", "template"),
        every,
        servers,
        spec.sandboxes is not None,
    )


def _set_of(part: BaseModel | None, *fields: str) -> Mapping[str, Any]:
    return part.model_dump(mode="json", include=set(fields), exclude_defaults=True) if part is not None else {}


def _templates(run: RunContext, gym: GymServers) -> Iterator[tuple[str, int, Object]]:
    """Returns name, number of pods and template of everything in the run that makes pods."""
    yield TRAINER, run.spec.trainer.nodes, trainer_job(run, 1)["spec"]["template"]
    for manifest in inference_objects(run):
        if manifest["kind"] == "Deployment":
            yield INFERENCE, run.spec.inference.replicas, manifest["spec"]["template"]
        elif manifest["kind"] == leader_worker_set.KIND:
            groups, template = run.spec.inference.replicas, manifest["spec"]["leaderWorkerTemplate"]
            yield INFERENCE, groups, template["leaderTemplate"]
            yield _WORKERS, groups * (run.spec.inference.nodes - 1), template["workerTemplate"]
    deployments = {one["metadata"]["name"]: one["spec"] for one in gym_objects(run, gym) if one["kind"] == "Deployment"}
    sets = gym_pod_sets(run, gym)
    for server in gym_server_kinds(run, gym):
        spec = deployments[run.gym_server(server)]
        yield sets[server], spec["replicas"], spec["template"]
    for name, objects in ((GATEWAY, gateway_objects(run)), (_BROKER, broker_objects(run))):
        for manifest in objects:
            if manifest["kind"] == "Deployment":
                yield name, manifest["spec"]["replicas"], manifest["spec"]["template"]


def _pod_set(name: str, count: int, template: Object) -> Object:
    spec = template["spec"]
    kept = {key: spec[key] for key in _POD_FIELDS if key in spec}
    for key in ("initContainers", "containers"):
        if key in spec:
            kept[key] = [{k: one[k] for k in _CONTAINER_FIELDS if k in one} for one in spec[key]]
    kept.setdefault("restartPolicy", spec.get("restartPolicy", "Always"))
    made: Object = {"name": name, "count": count, "template": {"spec": kept}}
    if request := _topology(name, template["metadata"].get("annotations") or {}):
        made["topologyRequest"] = request
    return made


def _topology(name: str, annotations: Mapping[str, str]) -> Object:
    """Returns the request for places close to each other, from the annotations that Kueue's users know."""
    request: Object = {}
    for field, key in kueue.TOPOLOGY_ANNOTATIONS.items():
        if value := annotations.get(key):
            request[field] = value == "true" if field == "unconstrained" else value
    if request and name == TRAINER:
        request["podIndexLabel"] = _RANK  # ranks that follow each other are neighbours
    return request
