"""How ready a server is, and what its condition says."""

from dataclasses import dataclass
from typing import cast

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus, ServerKind, ServerStatus
from gymtrain_operator.reconcile.conditions import Claim, find, holds, is_true, lacks
from gymtrain_operator.reconcile.observation import Object
from gymtrain_operator.reconcile.pod_diagnosis import condition, first_trouble


@dataclass(frozen=True)
class ServerState:
    """One server. `trouble` is what is wrong with its pods, for a person."""

    status: ServerStatus
    ready: bool
    trouble: str


def server_state(
    name: str, kind: str, url: str, deployment: Object | None, wanted: int, pods: list[Object]
) -> ServerState:
    """How one server is, by its Deployment and its pods; `wanted` is the number of pods that the spec asks for."""
    status = (deployment or {}).get("status") or {}
    ready = min(int(status.get("readyReplicas", 0)), wanted)
    trouble = first_trouble(pods)
    if deployment is not None and not trouble:
        failed = condition(deployment, "ReplicaFailure")
        trouble = f"no pod can be made: {failed.get('message', '')}" if failed.get("status") == "True" else ""
    shown = ServerStatus(
        name=name,
        kind=cast(ServerKind, kind),
        url=url,
        ready=f"{ready}/{wanted}",
    )
    return ServerState(shown, deployment is not None and ready >= wanted, trouble)


def readiness(kind: ConditionType, states: list[ServerState], what: str, before: GymTrainingRunStatus) -> Claim:
    """The condition of `kind` over some servers, which a person knows as `what`."""
    waiting = [state for state in states if not state.ready]
    if not waiting:
        count = sum(int(state.status.ready.split("/")[0]) for state in states)
        return holds(kind, Reason.ALL_READY, f"{what}: all {count} pods are ready")
    # Once ready, a server that is not is news; before that it is the way up.
    old = find(before, kind)
    was_ready = is_true(before, kind) or (old is not None and old.reason == Reason.PODS_NOT_READY)
    names_text = ", ".join(f"{state.status.name} ({state.status.ready})" for state in waiting)
    text = f"{what}: waiting for {names_text}"
    trouble = next((state.trouble for state in waiting if state.trouble), "")
    reason = Reason.PODS_NOT_READY if was_ready else Reason.PODS_STARTING
    return lacks(kind, reason, f"{text}: {trouble}" if trouble else text)
