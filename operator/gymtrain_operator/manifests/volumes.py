"""PersistentVolumeClaims that are made for a run, and which of them outlive it (decision 18)."""

from typing import Any

from gymtrain_api import labels, names
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped, unowned_metadata

_KIND = "PersistentVolumeClaim"


def volume_claims(run: RunContext, *, in_use: bool) -> list[Object]:
    """The claims for the model and for the checkpoints, where the spec asks for them.

    `in_use`: a trainer writes to them, or is about to. Until then all of them go with the run: they are empty.
    """
    claims = []
    storage = run.spec.model.storage
    if storage:
        meta = metadata(run, names.model_volume(run.name))
        claims.append(_claim(meta, storage.size, storage.access_modes, storage.storage_class_name))
    checkpoint = run.spec.trainer.checkpoint
    if checkpoint and checkpoint.size:
        kept = in_use and checkpoint.retain == "Keep"
        meta = (unowned_metadata if kept else metadata)(run, names.checkpoint_volume(run.name))
        claims.append(_claim(meta, checkpoint.size, checkpoint.access_modes, checkpoint.storage_class_name))
    return claims


def is_kept(manifest: Object, run: str) -> bool:
    """Whether an object is the checkpoint volume that was kept of a run of this name: it has our name and labels, and
    nobody owns it. The run of the name that comes next takes it over."""
    meta = manifest["metadata"]
    return (
        manifest.get("kind") == _KIND
        and meta["name"] == names.checkpoint_volume(run)
        and labels.run_labels(run).items() <= (meta.get("labels") or {}).items()
        and not meta.get("ownerReferences")
    )


def _claim(meta: Object, size: str, modes: list[Any], storage_class: str | None) -> Object:
    spec: dict[str, Any] = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return stamped({"apiVersion": "v1", "kind": _KIND, "metadata": meta, "spec": spec}, digest(spec))
