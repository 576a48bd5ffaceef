"""PersistentVolumeClaims that are made for a run."""

from typing import Any

from gymtrain_api import names
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped


def volume_claims(run: RunContext) -> list[Object]:
    """The claims for the model and for the checkpoints, where the spec asks for them."""
    claims = []
    storage = run.spec.model.storage
    if storage:
        name = names.model_volume(run.name)
        claims.append(_claim(run, name, storage.size, storage.access_modes, storage.storage_class_name))
    checkpoint = run.spec.trainer.checkpoint
    if checkpoint and checkpoint.size:
        name = names.checkpoint_volume(run.name)
        claims.append(_claim(run, name, checkpoint.size, checkpoint.access_modes, checkpoint.storage_class_name))
    return claims


def _claim(run: RunContext, name: str, size: str, modes: list[Any], storage_class: str | None) -> Object:
    spec: dict[str, Any] = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(run, name),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))
