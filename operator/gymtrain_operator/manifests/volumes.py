"""The volumes of a run: the PersistentVolumeClaims that are made for it, which of them outlive it (decision 18), and
how they get into its pods: the trainer writes checkpoints; vLLM reads adapters there, and keeps what it compiles."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gymtrain_api import labels, names, transports, wiring
from gymtrain_api.resume import ResumeFrom
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import digest, metadata, stamped, unowned_metadata

_KIND = "PersistentVolumeClaim"
_CACHE_FOLDER = "gymtrain-compile-cache"  # on a claim of the user's
_DATA_FOLDER = "gymtrain-data"  # likewise


def volume_claims(run: RunContext, *, in_use: bool) -> list[Object]:
    """Builds the PersistentVolumeClaims for the model, for datasets, for the checkpoints and for what vLLM compiles,
    where the spec asks for them.

    `in_use`: a trainer writes to them, or is about to. Until then all of them go with the run: they are empty.
    """
    claims = []
    storage = run.spec.model.storage
    if storage:
        meta = metadata(run, names.model_volume(run.name))
        claims.append(_volume_claim(run, meta, storage.size, storage.access_modes, storage.storage_class_name))
    data = run.spec.data.storage
    if data and data.size:
        meta = metadata(run, names.data_volume(run.name))
        claims.append(_volume_claim(run, meta, data.size, data.access_modes, data.storage_class_name))
    checkpoint = run.spec.trainer.checkpoint
    if checkpoint and checkpoint.size:
        kept = in_use and checkpoint.retain == "Keep"
        meta = (unowned_metadata if kept else metadata)(run, names.checkpoint_volume(run.name))
        claims.append(_volume_claim(run, meta, checkpoint.size, checkpoint.access_modes, checkpoint.storage_class_name))
    cache = run.spec.inference.compile_cache
    if cache and cache.size:
        meta = metadata(run, names.compile_cache_volume(run.name))
        claims.append(_volume_claim(run, meta, cache.size, cache.access_modes, cache.storage_class_name))
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


def _volume_claim(run: RunContext, meta: Object, size: str, modes: list[Any], storage_class: str | None) -> Object:
    spec: dict[str, Any] = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if storage_class is None:
        storage_class = run.applied.storage_class_name
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return stamped({"apiVersion": "v1", "kind": _KIND, "metadata": meta, "spec": spec}, digest(spec))


def checkpoint_volume(run: RunContext) -> Object:
    """Returns the volume of a pod: the user's claim, the one made for the run, or a folder that ends with the pod."""
    checkpoint = run.spec.trainer.checkpoint
    if checkpoint is None:
        return {"name": "checkpoints", "emptyDir": {}}
    claim = checkpoint.claim_name or names.checkpoint_volume(run.name)
    return {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}


def checkpoint_mount(run: RunContext, *, read_only: bool = False) -> Object:
    """Returns the mount of that volume; at the same path in every pod, so that a path means the same to all."""
    mount: Object = {"name": "checkpoints", "mountPath": wiring.CHECKPOINT_DIR}
    if read_only:
        mount |= {"readOnly": True}
    checkpoint = run.spec.trainer.checkpoint
    # Runs may share a claim of the user's; each writes below a folder of its own.
    return mount | {"subPath": run.name} if checkpoint and checkpoint.claim_name else mount


@dataclass(frozen=True)
class CacheMounts:
    """Volumes of a pod, and mounts of its vLLM container, for `spec.inference.compileCache`."""

    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()


def compile_cache(run: RunContext, volumes: Iterable[Object]) -> CacheMounts:
    """Mounts the volume for what vLLM compiles. `volumes`: what the pod has anyway."""
    cache = run.spec.inference.compile_cache
    if cache is None:
        return CacheMounts()
    claim = cache.claim_name or names.compile_cache_volume(run.name)
    known = _volume_of(claim, volumes)
    volume: Object = {"name": "compile-cache", "persistentVolumeClaim": {"claimName": claim}}
    mount: Object = {"name": known or "compile-cache", "mountPath": wiring.COMPILE_CACHE_DIR}
    if cache.claim_name:  # nothing else that is on the claim is vLLM's to see
        mount |= {"subPath": _CACHE_FOLDER}
    return CacheMounts(() if known else (volume,), (mount,))


@dataclass(frozen=True)
class DataMounts:
    """Volumes of a pod, and mounts of the containers that read or fill them, for `spec.data.storage`."""

    volumes: tuple[Object, ...] = ()
    read: tuple[Object, ...] = ()
    write: tuple[Object, ...] = ()


def data_storage(run: RunContext, volumes: Iterable[Object]) -> DataMounts:
    """Mounts the volume for datasets that are fetched. `volumes`: what the pod has anyway."""
    storage = run.spec.data.storage
    if storage is None:
        return DataMounts()
    claim = storage.claim_name or names.data_volume(run.name)
    known = _volume_of(claim, volumes)
    volume: Object = {"name": "fetched", "persistentVolumeClaim": {"claimName": claim}}
    mount: Object = {"name": known or "fetched", "mountPath": wiring.FETCHED_DIR}
    if storage.claim_name:  # runs may share it; each has a folder of its own
        mount |= {"subPath": f"{_DATA_FOLDER}/{run.name}"}
    return DataMounts(() if known else (volume,), (mount | {"readOnly": True},), (mount,))


@dataclass(frozen=True)
class ResumeMounts:
    """Volumes of a pod, and read-only mounts of its trainer container, for the run whose checkpoints it
    reads: `spec.resumeFrom`, or those that are evaluated."""

    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()


def resume_in_trainer(run: RunContext) -> ResumeMounts:
    """Mounts the folder of the earlier run. A run that goes on from its own name has it already."""
    source = _source(run)
    checkpoint = run.spec.trainer.checkpoint
    if source is None or checkpoint is None or source.run == run.name:
        return ResumeMounts()
    mount: Object = {"mountPath": f"{wiring.RESUME_DIR}/{source.run}", "readOnly": True}
    if checkpoint.claim_name:  # a pod that names a claim twice never starts with some drivers
        return ResumeMounts((), ({"name": "checkpoints", **mount, "subPath": source.run},))
    return ResumeMounts((_read_only(names.checkpoint_volume(source.run)),), ({"name": "resume", **mount},))


def resume_in_preflight(run: RunContext, volumes: Iterable[Object]) -> ResumeMounts:
    """Mounts the earlier run's volume as a whole, so that preflight can say what there is: for a subPath that isn't
    there the kubelet would make a folder. `volumes`: what the pod has anyway."""
    source = _source(run)
    checkpoint = run.spec.trainer.checkpoint
    if source is None or checkpoint is None:
        return ResumeMounts()
    claim = checkpoint.claim_name or names.checkpoint_volume(source.run)
    path = wiring.RESUME_DIR if checkpoint.claim_name else f"{wiring.RESUME_DIR}/{source.run}"
    known = _volume_of(claim, volumes)
    mount = {"name": known or "resume", "mountPath": path, "readOnly": True}
    return ResumeMounts(() if known else (_read_only(claim),), (mount,))


def _volume_of(claim: str, volumes: Iterable[Object]) -> str | None:
    """Names the volume that is the claim: a pod that names a claim twice never starts with some drivers."""
    return next((v["name"] for v in volumes if (v.get("persistentVolumeClaim") or {}).get("claimName") == claim), None)


def _read_only(claim: str) -> Object:
    return {"name": "resume", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _source(run: RunContext) -> ResumeFrom | None:
    return found[1] if (found := run.spec.reads_from) is not None else None


def is_shared_with_vllm(run: RunContext) -> bool:
    """Whether vLLM pods mount the volume: adapters get there through it."""
    return transports.planned(run.spec) == "LoRAFilesystem"


def is_single_node_volume(run: RunContext) -> bool:
    """Whether the volume is one that pods on different nodes can't have. Of a claim of the user's nothing is known."""
    checkpoint = run.spec.trainer.checkpoint
    return checkpoint is not None and checkpoint.size is not None and "ReadWriteMany" not in checkpoint.access_modes
