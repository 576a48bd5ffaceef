"""What each step of the plan returns: objects to write and to delete, and what to say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from gymtrain_api import agent_sandbox, leader_worker_set
from gymtrain_api.conditions import Reason
from gymtrain_operator.kinds import Object
from gymtrain_operator.reconcile.conditions import StatedCondition
from gymtrain_operator.reconcile.observation import name_of, uid_of

_WITH_PODS = {"Job", "Deployment", leader_worker_set.KIND, agent_sandbox.CLAIM}


@dataclass(frozen=True)
class Deletion:
    """An object to delete, if it is still the one that was seen.

    Attributes:
        foreground: the object stays until its pods are gone, so that its name says whether they are.
    """

    kind: str
    name: str
    uid: str
    foreground: bool = False

    @classmethod
    def of(cls, manifest: Object) -> Self:
        """Returns the deletion of an object that was seen; of what has pods, the pods go first."""
        kind = manifest["kind"]
        return cls(kind, name_of(manifest), uid_of(manifest), foreground=kind in _WITH_PODS)


@dataclass(frozen=True)
class Update:
    """A change of an object that another controller writes, too.

    Attributes:
        live: the object as it was seen; it must not have changed since.
        changes: a merge patch.
    """

    live: Object
    changes: Mapping[str, Any]
    subresource: str = ""


@dataclass(frozen=True)
class Failure:
    """Why the run ends: the reason, and what the user reads."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Changes:
    """Objects to write, to delete and to change, and conditions to state.

    Attributes:
        requeue_after: seconds after which something may have to be done although nothing happens.
    """

    apply: tuple[Object, ...] = ()
    delete: tuple[Deletion, ...] = ()
    updates: tuple[Update, ...] = ()
    conditions: tuple[StatedCondition, ...] = ()
    requeue_after: float | None = None

    def and_then(self, other: "Changes") -> "Changes":
        """Returns both, in this order, with the sooner requeue."""
        return replace(
            self,
            apply=self.apply + other.apply,
            delete=self.delete + other.delete,
            updates=self.updates + other.updates,
            conditions=self.conditions + other.conditions,
            requeue_after=sooner(self.requeue_after, other.requeue_after),
        )


def sooner(one: float | None, other: float | None) -> float | None:
    """Returns the smaller of two delays, None being never."""
    delays = [delay for delay in (one, other) if delay is not None]
    return max(0.0, min(delays)) if delays else None
