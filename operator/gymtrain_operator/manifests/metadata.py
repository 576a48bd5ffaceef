"""Metadata of the objects of a run: names, labels, owner, and what they were made from."""

from gymtrain_api import labels
from gymtrain_operator.manifests.context import Object, RunContext


def metadata(run: RunContext, name: str, role: labels.Role | None = None, **more: str) -> Object:
    """Metadata of an object of the run, owned by it. `more` are further labels by constant's name."""
    return unowned_metadata(run, name, role, **more) | {"ownerReferences": [owner_reference(run.name, run.uid)]}


def unowned_metadata(run: RunContext, name: str, role: labels.Role | None = None, **more: str) -> Object:
    """The same for an object that outlives the run."""
    return {"name": name, "namespace": run.namespace, "labels": labels.run_labels(run.name, role) | more}


def owner_reference(run: str, uid: str) -> Object:
    """What makes the garbage collector delete an object with its run.

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


def stamped(manifest: Object, config_hash: str) -> Object:
    """The object with the hash of what it was made from as an annotation."""
    meta = manifest["metadata"]
    assert isinstance(meta, dict)
    annotations = dict(meta.get("annotations") or {}) | {labels.CONFIG_HASH: config_hash}
    return manifest | {"metadata": meta | {"annotations": annotations}}
