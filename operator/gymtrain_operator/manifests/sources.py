"""How the model and the datasets get into a pod: what stands behind each `source` of the spec, as volumes and mounts.

The model is mounted at one path in every pod; where its volume isn't filled already an init container fetches it.

Dataset N of `spec.data.train` is mounted as a folder, /gymtrain/sources/N, and one of `spec.data.validation` as
/gymtrain/sources/validation-N; the file in it has the path that the source names (a key, for a ConfigMap). The whole
volume is mounted, not the file by subPath: for a file that isn't there the kubelet would make a folder of that name
instead of an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from gymtrain_api import names, wiring
from gymtrain_api.sources import (
    ConfigMapKey,
    GymPath,
    HubDataset,
    HuggingFace,
    ModelImage,
    ModelSource,
    StoredObject,
    VolumeClaim,
    VolumePath,
    parse_data_source,
    parse_model_source,
)
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.pod import container, secret_env

INDEX_MOUNT: Object = {"name": "data", "mountPath": wiring.DATA_DIR}
INDEX_VOLUME: Object = {"name": "data", "emptyDir": {}}

_MODEL_VOLUME = "model"


@dataclass(frozen=True)
class ModelMount:
    """The model of one pod.

    Attributes:
        volume: the pod's volume.
        mount: read-only mount of the containers that use the model.
        fetch: init container that fills the volume, where it isn't filled already.
    """

    volume: Object
    mount: Object
    fetch: tuple[Object, ...]


@dataclass(frozen=True)
class DatasetMounts:
    """Volumes of the pod, and the mounts of the container that reads the datasets."""

    volumes: tuple[Object, ...]
    mounts: tuple[Object, ...]


def model_in_server_pods(run: RunContext) -> ModelMount:
    """Mounts the model in vLLM and trainer pods: the shared volume that preflight filled, the user's own claim, or a
    copy that the pod makes for itself."""
    if run.spec.model.storage:
        return ModelMount(_model_claim(names.model_volume(run.name)), _model_mount(), ())
    return _own_copy(run)


def model_in_preflight(run: RunContext) -> ModelMount:
    """Mounts the model in the preflight pod, which fills the shared volume. Of a hub's model that isn't shared only
    config and tokenizer are fetched there: the pods that load the weights fetch them themselves."""
    source = parse_model_source(run.spec.model.source)
    if run.spec.model.storage:
        return ModelMount(_model_claim(names.model_volume(run.name)), _model_mount(), (_fetch(run, source),))
    if isinstance(source, HuggingFace):
        return ModelMount(_empty(), _model_mount(), (_fetch(run, source, "--without-weights"),))
    return _own_copy(run)


def token_env(run: RunContext) -> list[Object]:
    """Returns HF_TOKEN for a gated model."""
    secret = run.spec.model.token_secret
    return [secret_env("HF_TOKEN", secret.name, secret.key)] if secret else []


def _own_copy(run: RunContext) -> ModelMount:
    source = parse_model_source(run.spec.model.source)
    if isinstance(source, VolumeClaim):
        return ModelMount(_model_claim(source.claim), _model_mount(source.path), ())
    return ModelMount(_empty(), _model_mount(), (_fetch(run, source),))


def _fetch(run: RunContext, source: ModelSource, *arguments: str) -> Object:
    mounts: list[Object] = [{"name": _MODEL_VOLUME, "mountPath": wiring.MODEL_DIR}]
    requests = {"cpu": "50m", "memory": "128Mi"}
    match source:
        case ModelImage(image=image):
            # KServe's modelcar layout; L since such images link into their own layers.
            command = ["cp", "-rL", f"{wiring.MODEL_IMAGE_DIR}/.", f"{wiring.MODEL_DIR}/"]
            return container(run, "model", image, command, mounts=mounts, requests=requests, own_scratch=True)
        case HuggingFace() | VolumeClaim():
            command = ["python", "-m", "gymtrain_trainer.fetch", *arguments]
            image, env = run.trainer_image, token_env(run)
            return container(run, "model", image, command, mounts=mounts, env=env, requests=requests)
        case _:
            assert_never(source)


def _model_claim(name: str) -> Object:
    return {"name": _MODEL_VOLUME, "persistentVolumeClaim": {"claimName": name}}


def _empty() -> Object:
    return {"name": _MODEL_VOLUME, "emptyDir": {}}


def _model_mount(path: str = "") -> Object:
    mount: Object = {"name": _MODEL_VOLUME, "mountPath": wiring.MODEL_DIR, "readOnly": True}
    return mount | {"subPath": path.strip("/")} if path.strip("/") else mount


def dataset_mounts(run: RunContext) -> DatasetMounts:
    """Mounts all datasets that live in the cluster, read-only. A claim that several datasets share is one volume:
    a pod that names a claim twice never starts with some drivers."""
    volumes: dict[str, Object] = {}
    mounts: list[Object] = []
    for place, dataset in run.spec.used_data.placed():
        source = parse_data_source(dataset.source) if dataset.source else None
        match source:
            case VolumeClaim(claim=claim):
                key, volume = f"pvc/{claim}", {"persistentVolumeClaim": {"claimName": claim}}
            case ConfigMapKey(name=name):
                key, volume = f"configmap/{name}", {"configMap": {"name": name}}
            case VolumePath():
                key, volume = f"volume/{place}", dict(dataset.volume or {})
            case GymPath() | HubDataset() | StoredObject() | None:
                continue  # in the Gym image, on the volume for what is fetched, or made by a generator
            case _:
                assert_never(source)
        found = volumes.setdefault(key, volume | {"name": f"source-{len(volumes)}"})
        mounts.append(
            {
                "name": found["name"],
                "mountPath": f"{wiring.SOURCES_DIR}/{wiring.source_folder(place)}",
                "readOnly": True,
            }
        )
    return DatasetMounts(tuple(volumes.values()), tuple(mounts))


def data_fetch(run: RunContext, mounts: Sequence[Object]) -> list[Object]:
    """Builds the init containers of the preflight pod that fetch datasets to the volume: one for each Secret, since
    what opens one source is not for the others. `mounts` has the volume."""
    by_secret: dict[str, list[str]] = {}
    for place, dataset in run.spec.used_data.placed():
        if dataset.source and isinstance(parse_data_source(dataset.source), HubDataset | StoredObject):
            by_secret.setdefault(dataset.secret.name if dataset.secret else "", []).append(place)
    fetching = []
    for secret, places in by_secret.items():
        datasets = [place.rstrip("]").replace("[", "-") for place in places]
        command = ["python", "-m", "gymtrain_gym.fetch", *datasets]
        name, requests = f"fetch-data-{wiring.source_folder(places[0])}", {"cpu": "50m", "memory": "256Mi"}
        made = container(run, name, run.gym_image, command, mounts=mounts, requests=requests, own_scratch=True)
        fetching.append(made | {"envFrom": [{"secretRef": {"name": secret}}]} if secret else made)
    return fetching


def data_prepare(run: RunContext, mounts: Sequence[Object]) -> list[Object]:
    """Builds the init container of the preflight pod that runs NeMo Gym's data preparation, if the run has one."""
    prepare = run.spec.data.prepare
    if prepare is None:
        return []
    secret = prepare.token_secret
    token = [secret_env(wiring.ENV_DATA_TOKEN, secret.name, secret.key)] if secret else []
    command = ["python", "-m", "gymtrain_gym.prepare"]
    env, requests = [*run.spec.gym.env, *token], {"cpu": "50m", "memory": "512Mi"}
    made = container(
        run, "prepare-data", run.gym_image, command, mounts=mounts, env=env, requests=requests, own_scratch=True
    )
    return [made]


def data_init(run: RunContext, gym_config_mount: Object, fetched: Sequence[Object]) -> Object:
    """Builds the init container of trainer pods that prepares and indexes the datasets."""
    return container(
        run,
        "data",
        run.gym_image,
        ["python", "-m", "gymtrain_gym.data"],
        mounts=[INDEX_MOUNT, gym_config_mount, *fetched, *dataset_mounts(run).mounts],
        env=run.spec.gym.env,
        requests={"cpu": "50m", "memory": "128Mi"},
        own_scratch=True,
    )
