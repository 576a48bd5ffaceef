"""Which of the desired objects have to be written, given what is there.

- Pod, Job: once, since their pods can't be changed.
- Workload: once; what changes of it is an `Update`, as Kueue writes it too.
- SandboxWarmPool: once, to see whether its controller answers.
- PersistentVolumeClaim: once; its size is the storage's business from then on.
- Deployment: when its inputs changed (annotation `gymtrain.dev/config-hash`), and at a resync when someone else
  wrote to its pod template. Another release of the operator builds another template from the same inputs; that
  alone must not restart a server, so templates are not compared. The number of pods is set by itself.
- LeaderWorkerSet: as a Deployment.
- Secret, ServiceAccount, Role, RoleBinding, PodDisruptionBudget: with the Deployment that needs them, since they are
  never looked at.
- others: when their content changed, and at a resync when somebody has written to them, or may have.

And who owns the volume of the checkpoints: the run, which takes it with it, or nobody. What `checkpoint.retain` says
counts at any time, after the end too. A volume that is kept is the run's own only as long as it is empty: it loses its
owner in the same reconcile that makes the first trainer, before that is made, so that none ever writes to a volume that
would go with the run.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gymtrain_api import names
from gymtrain_api.labels import FIELD_MANAGER, ROLE
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.objects import config_hash, owner_reference
from gymtrain_operator.reconcile.observation import Children, Observation, is_deleting, labels_of, name_of, uid_of

_WRITTEN_ONCE = {"Pod", "Job", "PersistentVolumeClaim", "SandboxWarmPool", kinds.WORKLOAD.name}
# Kinds with pod templates that can change, and where those are in `spec`.
_TEMPLATES = {"Deployment": "f:template", kinds.LEADER_WORKER_SET.name: "f:leaderWorkerTemplate"}
_UNSEEN = {kind.name for kind in kinds.CREATED_ONLY}


@dataclass(frozen=True)
class Scaling:
    """A Deployment or LeaderWorkerSet that needs only another number of pods, or of groups of them."""

    kind: str
    name: str
    uid: str
    replicas: int


@dataclass(frozen=True)
class OwnerChange:
    """The owners that an object is to have from now on.

    Attributes:
        live: the object as it was seen; it must not have changed since.
        owners: all of its ownerReferences.
    """

    live: Object
    owners: tuple[Object, ...]


def needed_writes(
    desired: Iterable[Object], children: Children, *, resync: bool, untouched: Collection[str] = ()
) -> tuple[tuple[Object, ...], tuple[Scaling, ...]]:
    """Returns the objects to write, in the given order, and what to scale.

    An object on its way out is left alone: its successor can only be made when it is gone.

    Args:
        untouched: uids of the objects that nobody has written since the operator did.
    """
    writes: list[Object] = []
    scalings: list[Scaling] = []
    for manifest in desired:
        kind = manifest["kind"]
        live = children.get(kind, name_of(manifest))
        if live is None or kind in _UNSEEN:
            writes.append(manifest)
        elif is_deleting(live) or kind in _WRITTEN_ONCE:
            continue
        elif config_hash(live) != config_hash(manifest):
            writes.append(manifest)
        elif kind in _TEMPLATES:
            wanted = manifest["spec"]["replicas"]
            if resync and _edited_by_others(live):
                writes.append(manifest)
            elif live["spec"].get("replicas") != wanted:
                scalings.append(Scaling(kind, name_of(live), str(live["metadata"]["uid"]), wanted))
        elif resync and uid_of(live) not in untouched:
            writes.append(manifest)
    parts = {labels_of(manifest)[ROLE] for manifest in writes if manifest["kind"] in _TEMPLATES}
    due = (m for m in writes if m["kind"] not in _UNSEEN or labels_of(m)[ROLE] in parts)
    return tuple(due), tuple(scalings)


def _edited_by_others(live: Object) -> bool:
    """Whether a field of the pod template belongs to someone else, by the API server's own record of who wrote what.

    Writing the Deployment again takes back the fields that are ours. What others added stays theirs, so it is written
    at each resync, to no effect.
    """
    return any(
        entry.get("manager") != FIELD_MANAGER
        and not entry.get("subresource")
        and _TEMPLATES[live["kind"]] in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in live["metadata"].get("managedFields") or []
    )


def owner_changes(seen: Observation, status: GymTrainingRunStatus) -> tuple[OwnerChange, ...]:
    """Returns what has to change, by the status that the run is to have."""
    checkpoint = seen.run.spec.trainer.checkpoint if seen.run.spec else None
    live = seen.children.get("PersistentVolumeClaim", names.checkpoint_volume(seen.run.name))
    if checkpoint is None or checkpoint.size is None or live is None or is_deleting(live):
        return ()
    owners = live["metadata"].get("ownerReferences") or []
    others = tuple(owner for owner in owners if owner.get("uid") != seen.run.uid)
    owned = len(others) < len(owners)
    if checkpoint.retain == "Delete" and not owned:
        return (OwnerChange(live, (*others, owner_reference(seen.run.name, seen.run.uid))),)
    if checkpoint.retain == "Keep" and owned and status.attempt is not None:
        return (OwnerChange(live, others),)
    return ()
