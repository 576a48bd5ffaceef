"""The preflight pod: the images of the Gym servers, of vLLM and of the trainer check the user's input with the real
libraries, on the CPU."""

from collections.abc import Iterable, Mapping
from typing import Any

from gymtrain_api import labels, names
from gymtrain_api.merge import merge
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import digest, metadata, stamped
from gymtrain_operator.manifests.pod import container, pod_template
from gymtrain_operator.manifests.sources import (
    INDEX_MOUNT,
    INDEX_VOLUME,
    data_fetch,
    data_prepare,
    dataset_mounts,
    model_in_preflight,
    token_env,
)
from gymtrain_operator.manifests.trainer import push_keys
from gymtrain_operator.manifests.volumes import data_storage, resume_in_preflight

GYM_CONTAINER = "gym"
TRAINER_CONTAINER = "trainer"
INFERENCE_CONTAINER = "inference"
CONTAINERS = (GYM_CONTAINER, TRAINER_CONTAINER, INFERENCE_CONTAINER)
_LIMITS = {"cpu": "1", "memory": "4Gi"}

# Live settings: no check depends on them, so a change of them needs no new preflight.
_UNCHECKED: Mapping[str, Mapping[str, bool | set[str]] | set[str] | bool] = {
    "suspend": True,
    "startup_deadline_seconds": True,
    "backoff_limit": True,
    "active_deadline_seconds": True,
    "ttl_seconds_after_finished": True,
    "inference": {"replicas", "min_replicas", "resources"},
    "trainer": {"resources": True, "checkpoint": {"retain"}},
    "gym": {"resources", "egress"},
    "gateway": True,
}


def preflight_hash(run: RunContext) -> str:
    """Returns the hash of what the preflight pod is made from and checks."""
    dumped = run.spec.model_dump(mode="json", exclude=_UNCHECKED, exclude_defaults=True)
    spec = {block: value for block, value in dumped.items() if value != {}}  # nothing left is nothing set
    servers = run.spec.gym.servers
    spec["gym"]["servers"] = sorted(servers)  # their names are checked, their pods are not
    spec["checks"] = CONTAINERS  # a pod of another release, which checked less, is none of ours
    # Images may differ, as default images may: the pod keeps note of those that it has.
    if applied := run.applied.model_dump(mode="json", exclude={"images", "ttl_seconds_after_finished"}):
        spec["defaults"] = applied
    return digest(spec)


def preflight_pod(run: RunContext) -> Object:
    """Builds the preflight pod. It isn't changed or tried again: other inputs make another pod. It keeps note of all
    images of its release, which all later pods of the run use."""
    model = model_in_preflight(run)
    sources = dataset_mounts(run)
    volumes = [model.volume, INDEX_VOLUME, *sources.volumes]
    fetched = data_storage(run, volumes)
    volumes += fetched.volumes
    resume = resume_in_preflight(run, volumes)
    gym = container(
        run,
        GYM_CONTAINER,
        run.gym_image,
        ["python", "-m", "gymtrain_gym.preflight"],
        mounts=[INDEX_MOUNT, *fetched.read, *sources.mounts],
        env=run.spec.gym.env,
        requests={"cpu": "50m", "memory": "256Mi"},
        limits=_LIMITS,
        own_scratch=True,
    )
    trainer = container(
        run,
        TRAINER_CONTAINER,
        run.trainer_image,
        ["python", "-m", "gymtrain_trainer.preflight"],
        mounts=[model.mount, *resume.mounts],
        env=[*token_env(run), *run.spec.trainer.env],
        **push_keys(run),
        requests={"cpu": "50m", "memory": "512Mi"},
        limits=_LIMITS,
    )
    inference = container(
        run,
        INFERENCE_CONTAINER,
        run.inference_image,
        ["python", "-m", "gymtrain_vllm.preflight"],
        mounts=[model.mount],
        # Less than the trainer's share of a busy core: its check is the longer one where no vLLM has to be imported.
        requests={"cpu": "20m", "memory": "512Mi"},
        limits=_LIMITS,
    )
    name = names.preflight(run.name, preflight_hash(run))
    template = pod_template(
        run,
        labels.Role.PREFLIGHT,
        containers=[gym, trainer, inference],
        init=[*model.fetch, *data_fetch(run, fetched.write), *data_prepare(run, fetched.write)],
        volumes=[*volumes, *resume.volumes],
        template=_cpu_template(run),
        restartPolicy="Never",
        activeDeadlineSeconds=run.spec.startup_deadline_seconds,
        grace_seconds=5,
    )
    noted = {labels.IMAGES: run.images.model_dump_json(by_alias=True)}
    own = metadata(run, name, labels.Role.PREFLIGHT) | {"annotations": noted}
    meta = merge(template["metadata"], own)
    return stamped({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}, preflight_hash(run))


def _cpu_template(run: RunContext) -> dict[str, Any]:
    """Returns what the preflight pod takes over from the templates of the Gym servers, of the trainer and of vLLM.

    The Gym servers run on CPU nodes as preflight does: their template counts in full. Of the others only what their
    containers need to run anywhere: node selectors and tolerations would pin the check to a GPU node.
    """
    gym = merge({}, run.spec.gym.template or {})
    containers = (gym.get("spec") or {}).get("containers")
    if containers:
        # A sidecar would keep the pod from ending.
        gym["spec"] = gym["spec"] | {"containers": [c for c in containers if c.get("name") == GYM_CONTAINER]}
    trainer = _to_run_anywhere(run.spec.trainer.template, TRAINER_CONTAINER, ())
    taken = [volume for template in (gym, trainer) for volume in (template.get("spec") or {}).get("volumes") or []]
    inference = _to_run_anywhere(run.spec.inference.template, INFERENCE_CONTAINER, taken)
    return merge(merge(gym, trainer), inference)


def _to_run_anywhere(template: dict[str, Any] | None, name: str, taken: Iterable[Object]) -> dict[str, Any]:
    """Returns a template with only what container `name` needs. A volume that another part's template calls the same,
    and that isn't the same (`taken`), gets a name of its own."""
    spec = (template or {}).get("spec") or {}
    own = [
        {key: c[key] for key in ("name", "env", "envFrom", "volumeMounts") if key in c}
        for c in spec.get("containers") or []
        if c.get("name") == name
    ]
    shared = {key: spec[key] for key in ("volumes", "imagePullSecrets") if key in spec}
    others = {volume.get("name"): volume for volume in taken}
    clashes = {v["name"] for v in shared.get("volumes") or [] if v.get("name") in others and v != others[v["name"]]}
    if clashes:
        shared["volumes"] = [_renamed(volume, clashes, name) for volume in shared["volumes"]]
        own = [
            c | {"volumeMounts": [_renamed(mount, clashes, name) for mount in c.get("volumeMounts") or []]} for c in own
        ]
    return {"spec": {"containers": own, **shared}} if own or shared else {}


def _renamed(item: Object, clashes: set[str], container_name: str) -> Object:
    """Renames the volume that a volume or a mount names, where two volumes have the name."""
    return item | {"name": f"{container_name}-{item['name']}"} if item.get("name") in clashes else item
