"""Carrying out a plan: owners, deletions, writes, scalings and changes of objects; then the run's record and status.

Never on an object that isn't the run's.
"""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gymtrain_api import labels
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_kube.errors import ConflictError, NotFoundError, RejectedError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.errors import ForeignObjectError
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.manifests.objects import digest
from gymtrain_operator.manifests.volumes import is_kept
from gymtrain_operator.reconcile.changes import Update
from gymtrain_operator.reconcile.observation import Observation, Rejection, is_left, labels_of, name_of, uid_of
from gymtrain_operator.reconcile.plan import Plan
from gymtrain_operator.reconcile.writes import OwnerChange

FIRST_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 60.0

_CREATED_ONLY = {kind.name for kind in kinds.CREATED_ONLY}
_FIRST = {kinds.CONFIG_MAP.name, kinds.VOLUME_CLAIM.name, kinds.NETWORK_POLICY.name}
# Written once, so plain creation does, and it fails by itself where the name is taken.
_WRITTEN_ONCE = (kinds.POD, kinds.JOB, kinds.VOLUME_CLAIM, kinds.SANDBOX_POOL, kinds.WORKLOAD)
_CREATED = {kind.name for kind in _WRITTEN_ONCE} | _CREATED_ONLY
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class _Rejected:
    """One object that was rejected. `content` is the hash of it: another content is tried at once."""

    rejection: Rejection
    content: str
    tries: int
    again_at: float


class RejectionBackoff:
    """What the API server rejected of one run, by kind and name: it is tried again after pauses that grow, and not at
    each look. All of it may be lost at any time."""

    def __init__(self) -> None:
        self._rejected: dict[tuple[str, str], _Rejected] = {}

    def standing(self, manifest: Object, now: float) -> Rejection | None:
        """Returns the rejection of this very object while it is too early to try again."""
        known = self._known(manifest)
        if known is None or now >= known.again_at:
            return None
        return replace(known.rejection, next_in=known.again_at - now)

    def note(self, manifest: Object, rejection: Rejection, now: float) -> Rejection:
        """Returns the rejection with the pause before the next try: 10, 20, 40, 60 seconds."""
        known = self._known(manifest)
        tries = known.tries + 1 if known else 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 10), MAX_PAUSE_SECONDS)
        told = replace(rejection, next_in=pause)
        self._rejected[manifest["kind"], name_of(manifest)] = _Rejected(told, digest(manifest), tries, now + pause)
        return told

    def forget(self, manifest: Object) -> None:
        """Notes that the API server accepted the object."""
        self._rejected.pop((manifest["kind"], name_of(manifest)), None)

    def _known(self, manifest: Object) -> _Rejected | None:
        known = self._rejected.get((manifest["kind"], name_of(manifest)))
        return known if known and known.content == digest(manifest) else None


async def carry_out(
    cluster: KubeClient, seen: Observation, plan: Plan, backoff: RejectionBackoff
) -> tuple[Rejection, ...]:
    """Applies the plan to the cluster. Returns what the API server rejected, now or a short while ago.

    What pods mount, and the fence around them, is written before the pods. After a rejection nothing more is written:
    what follows may depend on it.

    Raises:
        KubeError: the API server doesn't answer, or something changed meanwhile; observe again.
    """
    namespace = seen.run.namespace
    for change in plan.owners:
        if rejected := await _change_owners(cluster, change):
            return (rejected,)
    for deletion in plan.delete:
        kind = kinds.BY_NAME[deletion.kind]
        await cluster.delete(kind, namespace, deletion.name, deletion.uid, foreground=deletion.foreground)
    for group in _groups(plan.apply):
        results = await asyncio.gather(*(_try(cluster, seen, manifest, backoff) for manifest in group))
        rejections = tuple(result for result in results if result)
        if rejections:
            return rejections
    for scaling in plan.scale:
        await cluster.scale(kinds.BY_NAME[scaling.kind], namespace, scaling.name, scaling.uid, scaling.replicas)
    for update in plan.updates:
        if rejected := await _update(cluster, update):
            return (rejected,)
    return ()


def _groups(manifests: Iterable[Object]) -> list[list[Object]]:
    """Splits objects into groups that may be written at the same time, in order. An identity's objects follow each
    other: the API server takes no RoleBinding whose Role isn't there."""
    first = [m for m in manifests if m["kind"] in _FIRST]
    identity = [[m] for m in manifests if m["kind"] in _CREATED_ONLY]
    rest = [m for m in manifests if m["kind"] not in _FIRST | _CREATED_ONLY]
    return [first, *identity, rest]


async def _try(cluster: KubeClient, seen: Observation, manifest: Object, backoff: RejectionBackoff) -> Rejection | None:
    """Writes an object, unless it was rejected as it is and the pause after that isn't over."""
    standing = backoff.standing(manifest, seen.now)
    if standing is not None:
        return standing
    rejection = await _write(cluster, seen, manifest)
    if rejection is None:
        backoff.forget(manifest)
        return None
    what = f"{rejection.kind}/{rejection.name}"
    logger().warning("refused by the API server", object=what, message=rejection.message)
    return backoff.note(manifest, rejection, seen.now)


async def _change_owners(cluster: KubeClient, change: OwnerChange) -> Rejection | None:
    """Changes an object's owners. Where this is rejected nothing else of the plan may be done: a trainer would write
    to a volume that goes."""
    kind = kinds.BY_NAME[change.live["kind"]]
    try:
        await cluster.change_metadata(kind, change.live, {"ownerReferences": list(change.owners) or None})
    except RejectedError as error:
        return Rejection(kind.name, name_of(change.live), str(error), final=False)
    return None


async def _update(cluster: KubeClient, update: Update) -> Rejection | None:
    kind = kinds.BY_NAME[update.live["kind"]]
    try:
        await cluster.change_seen(kind, update.live, dict(update.changes), update.subresource)
    except NotFoundError:
        return None  # it is gone, and what was to be said of it with it
    except RejectedError as error:
        return Rejection(kind.name, name_of(update.live), str(error), final=False)
    return None


async def _write(cluster: KubeClient, seen: Observation, manifest: Object) -> Rejection | None:
    kind = kinds.BY_NAME[manifest["kind"]]
    name = name_of(manifest)
    live = seen.children.get(kind.name, name)
    try:
        if live is not None:
            await cluster.apply(kind, manifest, uid=uid_of(live))
        else:
            await _create(cluster, kind, manifest)
    except ForeignObjectError as error:
        return Rejection(kind.name, name, str(error), final=False)
    except NotFoundError as error:
        if kind not in kinds.INSTALL:
            raise
        return Rejection(kind.name, name, f"{error}: {kinds.INSTALL[kind]}", final=False)
    except RejectedError as error:
        # An object that is there goes on as it was: a mistake in a change of it must not end a run under way.
        return Rejection(kind.name, name, str(error), final=error.final and live is None)
    return None


async def _create(cluster: KubeClient, kind: Kind, manifest: Object) -> None:
    if kind is kinds.SECRET:  # chance is no part of a plan
        manifest = manifest | {"stringData": {key: secrets.token_hex(_TOKEN_BYTES) for key in manifest["stringData"]}}
    try:
        await (cluster.create if kind.name in _CREATED else cluster.apply)(kind, manifest)
    except ConflictError:
        if kind.name in _CREATED_ONLY:
            if kind is kinds.DISRUPTION_BUDGET:
                await _replace_left(cluster, kind, manifest)
            return
        await _refuse_taken(cluster, kind, manifest)
        raise


async def _replace_left(cluster: KubeClient, kind: Kind, manifest: Object) -> None:
    """Replaces an earlier run's object of the name: once that was collected, this run would have none. Names of the
    other kinds that nobody looks at hold the run's UID."""
    namespace, name = manifest["metadata"]["namespace"], name_of(manifest)
    try:
        live = await cluster.get(kind, namespace, name)
    except RejectedError:
        return  # rights of somebody's own, of before there was this one
    if _of_an_earlier_run(live, manifest):
        await cluster.delete(kind, namespace, name, uid_of(live))
        await cluster.create(kind, manifest)


async def _refuse_taken(cluster: KubeClient, kind: Kind, manifest: Object) -> None:
    """Says why an object of the name exists that isn't in the observation: it is someone else's, unless it was only
    just made, or somebody took away the labels by which it is found. Those are given back."""
    name = name_of(manifest)
    try:
        live = await cluster.get(kind, manifest["metadata"]["namespace"], name)
    except NotFoundError:
        return
    run = labels_of(manifest)[labels.RUN]
    if _of_an_earlier_run(live, manifest):
        raise ForeignObjectError(f"{kind.name} {name} of an earlier run of this name is still on its way out")
    if _owners(live).isdisjoint(_owners(manifest)) and not is_kept(live, run):
        raise ForeignObjectError(
            f"{kind.name} {name} exists already and isn't part of this run: delete it, or give the run another name"
        )
    if lost := labels_of(manifest).items() - labels_of(live).items():
        await cluster.change_metadata(kind, live, {"labels": dict(lost)})
        raise ConflictError(f"{kind.name} {name} had lost labels of the run: {', '.join(sorted(dict(lost)))}")
    raise ConflictError(f"{kind.name} {name} was made since the run was observed")


def _of_an_earlier_run(live: Object, manifest: Object) -> bool:
    """Whether what has the object's name is an earlier run's of the same name."""
    return any(is_left(live, labels_of(manifest)[labels.RUN], uid) for uid in _owners(manifest))


def _owners(manifest: Object) -> set[str]:
    return {owner["uid"] for owner in manifest["metadata"].get("ownerReferences") or []}


async def write_record(cluster: KubeClient, run: Object, text: str) -> Object:
    """Writes the run's record (decision 19), and returns the run after that; an empty `text` removes the record.

    Raises:
        ConflictError: the run changed meanwhile.
        RejectedError: the API server refuses it.
    """
    return await cluster.change_metadata(kinds.RUN, run, {"annotations": {labels.RECORD: text or None}})


async def write_status(cluster: KubeClient, run: Object, status: GymTrainingRunStatus) -> Object:
    """Writes the run's status, and returns the run after that; the same object where nothing changed.

    The write carries the resourceVersion of the spec that the status was computed from, so two writers
    never undo each other: the second one has to look again.

    Raises:
        ConflictError: the run changed meanwhile.
    """
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    if document == (run.get("status") or {}):
        return run
    metrics.STATUS_WRITES.inc()
    return await cluster.replace(kinds.RUN, run | {"status": document}, "status")
