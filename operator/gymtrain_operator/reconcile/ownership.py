"""Who owns the volume of the checkpoints: the run, which takes it with it, or nobody.

What `checkpoint.retain` says counts at any time, after the end too. A volume that is kept is the run's own only as long
as it is empty: it loses its owner in the same reconcile that makes the first trainer, before that is made, so that none
ever writes to a volume that would go with the run.
"""

from dataclasses import dataclass

from gymtrain_api import names
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator.manifests.metadata import owner_reference
from gymtrain_operator.reconcile.observation import Object, Observation, is_deleting


@dataclass(frozen=True)
class Ownership:
    """The owners that an object is to have from now on.

    Attributes:
        live: the object as it was seen; it must not have changed since.
        owners: all of its ownerReferences.
    """

    live: Object
    owners: tuple[Object, ...]


def ownership(seen: Observation, status: GymTrainingRunStatus) -> tuple[Ownership, ...]:
    """What has to change, by the status that the run is to have."""
    checkpoint = seen.run.spec.trainer.checkpoint if seen.run.spec else None
    live = seen.children.get("PersistentVolumeClaim", names.checkpoint_volume(seen.run.name))
    if checkpoint is None or checkpoint.size is None or live is None or is_deleting(live):
        return ()
    owners = live["metadata"].get("ownerReferences") or []
    others = tuple(owner for owner in owners if owner.get("uid") != seen.run.uid)
    owned = len(others) < len(owners)
    if checkpoint.retain == "Delete" and not owned:
        return (Ownership(live, (*others, owner_reference(seen.run.name, seen.run.uid))),)
    if checkpoint.retain == "Keep" and owned and status.attempt is not None:
        return (Ownership(live, others),)
    return ()
