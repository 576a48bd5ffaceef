"""Carrying out a plan: owners, deletions, writes, scalings. Never on an object that isn't the run's."""

import asyncio
import secrets
from collections.abc import Iterable

from gymtrain_api import labels
from gymtrain_kube.errors import ConflictError, NotFoundError, RejectedError
from gymtrain_operator import kinds
from gymtrain_operator.errors import ForeignObjectError
from gymtrain_operator.kinds import Kind
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.manifests.volumes import is_kept
from gymtrain_operator.reconcile.observation import Object, Observation, Rejection, labels_of, name_of, uid_of
from gymtrain_operator.reconcile.ownership import Ownership
from gymtrain_operator.reconcile.plan import Plan
from gymtrain_operator.refusals import Refusals

_BLIND = {kind.name for kind in kinds.CREATED_ONLY}
_FIRST = {kinds.CONFIG_MAP.name, kinds.CLAIM.name, kinds.POLICY.name} | _BLIND
# Written once, so plain creation does, and it fails by itself where the name is taken.
_CREATED = {kinds.POD.name, kinds.JOB.name, kinds.CLAIM.name, kinds.SANDBOX_POOL.name} | _BLIND
_TOKEN_BYTES = 32


async def carry_out(cluster: KubeClient, seen: Observation, plan: Plan, refusals: Refusals) -> tuple[Rejection, ...]:
    """Makes the cluster as the plan says. Returns what the API server refused, now or a short while ago.

    What pods mount is written before the pods, one after the other; the rest at once. After a refusal
    nothing more is written: what follows may depend on it.

    Raises:
        KubeError: the API server doesn't answer, or something changed meanwhile; observe again.
    """
    namespace = seen.run.namespace
    for change in plan.owners:
        if refused := await _own(cluster, change):
            return (refused,)
    for deletion in plan.delete:
        kind = kinds.BY_NAME[deletion.kind]
        await cluster.delete(kind, namespace, deletion.name, deletion.uid, foreground=deletion.foreground)
    for group in _groups(plan.apply):
        results = await asyncio.gather(*(_try(cluster, seen, manifest, refusals) for manifest in group))
        rejections = tuple(result for result in results if result)
        if rejections:
            return rejections
    for scaling in plan.scale:
        await cluster.scale(namespace, scaling.name, scaling.uid, scaling.replicas)
    return ()


def _groups(manifests: Iterable[Object]) -> list[list[Object]]:
    """Objects that may be written at the same time, in order."""
    first = [m for m in manifests if m["kind"] in _FIRST]
    rest = [m for m in manifests if m["kind"] not in _FIRST]
    return [*([m] for m in first), rest]


async def _try(cluster: KubeClient, seen: Observation, manifest: Object, refusals: Refusals) -> Rejection | None:
    """Writes an object, unless it was refused as it is and the pause after that isn't over."""
    standing = refusals.standing(manifest, seen.now)
    if standing is not None:
        return standing
    rejection = await _write(cluster, seen, manifest)
    if rejection is None:
        refusals.forget(manifest)
        return None
    what = f"{rejection.kind}/{rejection.name}"
    logger().warning("refused by the API server", object=what, message=rejection.message)
    return refusals.note(manifest, rejection, seen.now)


async def _own(cluster: KubeClient, change: Ownership) -> Rejection | None:
    """Nothing else of the plan may be done where this is refused: a trainer would write to a volume that goes."""
    kind = kinds.BY_NAME[change.live["kind"]]
    try:
        await cluster.change_metadata(kind, change.live, {"ownerReferences": list(change.owners) or None})
    except RejectedError as error:
        return Rejection(kind.name, name_of(change.live), str(error), final=False)
    return None


async def _write(cluster: KubeClient, seen: Observation, manifest: Object) -> Rejection | None:
    kind = kinds.BY_NAME[manifest["kind"]]
    name = name_of(manifest)
    live = seen.children.get(kind.name, name)
    try:
        if live is not None:
            await cluster.apply(kind, manifest, uid=uid_of(live))
        elif kind.name in _CREATED:
            await _create(cluster, kind, manifest)
        else:
            await _refuse_foreign(cluster, kind, manifest)
            await cluster.apply(kind, manifest)
    except ForeignObjectError as error:
        return Rejection(kind.name, name, str(error), final=False)
    except RejectedError as error:
        # An object that is there goes on as it was: a mistake in a change of it must not end a run under way.
        return Rejection(kind.name, name, str(error), final=error.final and live is None)
    return None


async def _create(cluster: KubeClient, kind: Kind, manifest: Object) -> None:
    if kind is kinds.SECRET:  # chance is no part of a plan
        manifest = manifest | {"stringData": {key: secrets.token_hex(_TOKEN_BYTES) for key in manifest["stringData"]}}
    try:
        await cluster.create(kind, manifest)
    except ConflictError:
        if kind.name in _BLIND:
            return
        await _refuse_foreign(cluster, kind, manifest)


async def _refuse_foreign(cluster: KubeClient, kind: Kind, manifest: Object) -> None:
    """An object of the name that isn't in the observation is somebody else's, unless it is brand-new."""
    name = name_of(manifest)
    try:
        live = await cluster.get(kind, manifest["metadata"]["namespace"], name)
    except NotFoundError:
        return
    if _owners(live).isdisjoint(_owners(manifest)) and not is_kept(live, labels_of(manifest)[labels.RUN]):
        raise ForeignObjectError(
            f"{kind.name} {name} exists already and isn't part of this run: delete it, or give the run another name"
        )
    raise ConflictError(f"{kind.name} {name} was made since the run was observed")


def _owners(manifest: Object) -> set[str]:
    return {owner["uid"] for owner in manifest["metadata"].get("ownerReferences") or []}
