"""The pods of a run that are of no use without each other, as a PodGroup: a scheduler with the coscheduling plugin
places all of them or none (decision 48). Those are the trainer's and vLLM's. Gym servers and gateway need no GPUs, and
would only make the group harder to place.
"""

from gymtrain_api import coscheduling, names
from gymtrain_api.labels import Role
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import digest, metadata, stamped

_ROLES = {Role.TRAINER, Role.INFERENCE, Role.INFERENCE_WORKER}


def pod_group(run: RunContext, live: Object | None) -> list[Object]:
    """Builds the PodGroup; none where the run has no gang.

    As vLLM servers are added, its number stays (that of `live`): they are placed one by one, as there is room. As
    servers are taken away it falls, since a group without its number gets no new pods.
    """
    if not run.gang_scheduler:
        return []
    least = run.spec.trainer.nodes + run.spec.inference.replicas * run.spec.inference.nodes
    if live is not None:
        least = min(least, (live.get("spec") or {}).get("minMember") or least)
    manifest = {
        "apiVersion": coscheduling.API_VERSION,
        "kind": coscheduling.KIND,
        "metadata": metadata(run, names.pod_group(run.name)),
        "spec": {"minMember": least},
    }
    return [stamped(manifest, digest(least))]


def group_label(run: RunContext, role: Role) -> dict[str, str]:
    """Returns the label by which a pod is in the group."""
    return {coscheduling.POD_GROUP_LABEL: names.pod_group(run.name)} if _is_member(run, role) else {}


def group_scheduler(run: RunContext, role: Role) -> Object:
    """Returns the field of a pod's spec that names the scheduler."""
    return {"schedulerName": run.gang_scheduler} if _is_member(run, role) else {}


def _is_member(run: RunContext, role: Role) -> bool:
    return bool(run.gang_scheduler) and role in _ROLES
