"""The volume of the checkpoints: the trainer writes it, and vLLM reads adapters from it."""

from gymtrain_api import names, transports, wiring
from gymtrain_operator.manifests.context import Object, RunContext


def checkpoint_volume(run: RunContext) -> Object:
    """Volume of a pod: the user's claim, the one made for the run, or a folder that ends with the pod."""
    checkpoint = run.spec.trainer.checkpoint
    if checkpoint is None:
        return {"name": "checkpoints", "emptyDir": {}}
    claim = checkpoint.claim_name or names.checkpoint_volume(run.name)
    return {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}


def checkpoint_mount(run: RunContext, *, read_only: bool = False) -> Object:
    """Mount of the volume; at the same path in every pod, so that a path means the same to all."""
    mount: Object = {"name": "checkpoints", "mountPath": wiring.CHECKPOINT_DIR}
    if read_only:
        mount |= {"readOnly": True}
    checkpoint = run.spec.trainer.checkpoint
    # Runs may share a claim of the user's; each writes below a folder of its own.
    return mount | {"subPath": run.name} if checkpoint and checkpoint.claim_name else mount


def is_shared_with_vllm(run: RunContext) -> bool:
    """Whether vLLM pods mount the volume: adapters get there through it."""
    return transports.planned(run.spec) == "LoRAFilesystem"


def holds_on_one_node(run: RunContext) -> bool:
    """Whether the volume is one that pods on different nodes can't have. Of a claim of the user's nothing is known."""
    checkpoint = run.spec.trainer.checkpoint
    return checkpoint is not None and checkpoint.size is not None and "ReadWriteMany" not in checkpoint.access_modes
