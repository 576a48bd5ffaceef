"""How the policy model gets into a pod: volume, mount, and the init container that fetches it."""

from dataclasses import dataclass

from gymtrain_api import names, wiring
from gymtrain_api.sources import HuggingFace, ModelImage, VolumeClaim, parse_model_source
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.pod import container, secret_env

_VOLUME = "model"


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


def model_in_server_pods(run: RunContext) -> ModelMount:
    """The model in vLLM and trainer pods: the shared volume that preflight filled, the user's claim, or
    an own copy."""
    if run.spec.model.storage:
        return ModelMount(_claim(names.model_volume(run.name)), _mount(), ())
    return _own_copy(run)


def model_in_preflight(run: RunContext) -> ModelMount:
    """The model in the preflight pod, which fills the shared volume. Of a hub's model that isn't shared only config and
    tokenizer are fetched there: the pods that load the weights fetch them themselves."""
    source = parse_model_source(run.spec.model.source)
    if run.spec.model.storage:
        return ModelMount(_claim(names.model_volume(run.name)), _mount(), (_fetch(run, source),))
    if isinstance(source, HuggingFace):
        return ModelMount(_empty(), _mount(), (_fetch(run, source, "--without-weights"),))
    return _own_copy(run)


def token_env(run: RunContext) -> list[Object]:
    """HF_TOKEN for a gated model."""
    secret = run.spec.model.token_secret
    return [secret_env("HF_TOKEN", secret.name, secret.key)] if secret else []


def _own_copy(run: RunContext) -> ModelMount:
    source = parse_model_source(run.spec.model.source)
    if isinstance(source, VolumeClaim):
        return ModelMount(_claim(source.claim), _mount(source.path), ())
    return ModelMount(_empty(), _mount(), (_fetch(run, source),))


def _fetch(run: RunContext, source: HuggingFace | ModelImage | VolumeClaim, *arguments: str) -> Object:
    mounts: list[Object] = [{"name": _VOLUME, "mountPath": wiring.MODEL_DIR}]
    requests = {"cpu": "50m", "memory": "128Mi"}
    if isinstance(source, ModelImage):
        # KServe's modelcar layout; L since such images link into their own layers.
        command = ["cp", "-rL", f"{wiring.MODEL_IMAGE_DIR}/.", f"{wiring.MODEL_DIR}/"]
        return container(run, "model", source.image, command, mounts=mounts, requests=requests)
    command = ["python", "-m", "gymtrain_trainer.fetch", *arguments]
    return container(run, "model", run.trainer_image, command, mounts=mounts, env=token_env(run), requests=requests)


def _claim(name: str) -> Object:
    return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": name}}


def _empty() -> Object:
    return {"name": _VOLUME, "emptyDir": {}}


def _mount(path: str = "") -> Object:
    mount: Object = {"name": _VOLUME, "mountPath": wiring.MODEL_DIR, "readOnly": True}
    return mount | {"subPath": path.strip("/")} if path.strip("/") else mount
