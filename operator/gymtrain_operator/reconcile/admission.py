"""Kueue's say about a run: whether it may have pods, on which nodes, and how many vLLM servers (decision 41).

    preflight passed ─► Workload ─► pending ─► admitted ─► pods ─► the run's end: Finished
                           ▲           ▲                     │
                           │           └─ released, once ◄── evicted: the trainer writes a checkpoint, all pods go
                           │              no pod is left     │
                           └─ made anew ◄────────────────────┴─ needs other than what was admitted, or suspended

The queue is that of the run's label. It can change while the run holds no quota; until then the old one stands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gymtrain_api import kueue, labels, leader_worker_set, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.pods import condition
from gymtrain_api.spec import GymServer, GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_text
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests import workload as manifests
from gymtrain_operator.manifests.config_maps import gym_config_map, run_config_map
from gymtrain_operator.manifests.context import GymServers, PodSetAdmission, RunContext
from gymtrain_operator.manifests.gym import gym_pod_sets, gym_server_kinds
from gymtrain_operator.manifests.objects import config_hash
from gymtrain_operator.reconcile.changes import Changes, Deletion, Failure, Update
from gymtrain_operator.reconcile.conditions import false_condition, true_condition
from gymtrain_operator.reconcile.lifecycle import stop_all
from gymtrain_operator.reconcile.observation import (
    Children,
    Observation,
    Verdict,
    age_of,
    has_condition,
    is_deleting,
    name_of,
)

_UNSEEN_SECONDS = 30.0  # in which Kueue should have looked at a new Workload
_POLL_SECONDS = 5.0
# Of these evictions Kueue queues a workload again by itself; after the others it, or someone, says when.
_REQUEUED_AT_ONCE = {"Preempted", "NodeFailures"}
_WITH_PODS = (
    labels.Role.TRAINER,
    labels.Role.INFERENCE,
    labels.Role.INFERENCE_WORKER,
    labels.Role.GYM,
    labels.Role.GATEWAY,
    labels.Role.BROKER,
    labels.Role.SANDBOX,
)
_MAX_CONDITION_MESSAGE = 32768


@dataclass(frozen=True)
class AdmissionStep:
    """What the queue says.

    Attributes:
        run: the run with the servers and the nodes that it was admitted with.
        waits: it may have no pods; `changes` then are all that is to be done.
    """

    run: RunContext
    changes: Changes
    waits: bool = False
    failure: Failure | None = None


def step(seen: Observation, run: RunContext, verdict: Verdict, before: GymTrainingRunStatus) -> AdmissionStep:
    """Asks the queue. A run without one goes on as it is."""
    live = workload_of(seen.children, run.name)
    if live is None and (not seen.run.queue or _runs_without(seen, before)):
        return AdmissionStep(run, Changes())
    gym = GymServers(tuple(verdict.gym.servers), dict(verdict.gym.config))
    if live is None:
        return _enqueue(seen, run, gym, verdict, before)
    if is_deleting(live) or has_condition(live, "Finished"):
        # Of an earlier life of the run, or deleted by somebody: another is made once it is gone.
        changes = Changes(delete=() if is_deleting(live) else (Deletion.of(live),))
        return _stopped(seen, run, changes, Reason.WAITING_FOR_QUOTA, f"Workload {name_of(live)} is made anew")
    if has_condition(live, "QuotaReserved"):
        return _with_quota(seen, run, gym, live)
    if not seen.run.queue:  # the label is gone, and no quota is held
        return _stopped(
            seen, run, Changes(delete=(Deletion.of(live),)), Reason.WAITING_FOR_QUOTA, "the run leaves its queue"
        )
    return _pending(seen, run, gym, verdict, live)


def workload_of(children: Children, run: str) -> Object | None:
    """Returns the run's Workload."""
    return children.get(kueue.WORKLOAD, names.workload(run))


def withdrawn(seen: Observation) -> Changes:
    """Takes a suspended run out of the queue, once it has no pods: it gives its quota back, and its place."""
    live = workload_of(seen.children, seen.run.name)
    if live is None or is_deleting(live):
        return Changes()
    if has_pods(seen):
        return Changes(requeue_after=_POLL_SECONDS)
    return Changes(delete=(Deletion.of(live),))


def finished(seen: Observation, *, failed: str = "") -> Changes:
    """Frees the quota of a run that has ended; `failed` says why, where it did."""
    live = workload_of(seen.children, seen.run.name)
    if live is None or is_deleting(live) or has_condition(live, "Finished"):
        return Changes()
    reason = "Failed" if failed else "Succeeded"
    return Changes(updates=(_with_conditions(seen, live, _condition(seen, "Finished", "True", reason, failed)),))


def pods_ready(seen: Observation) -> Changes:
    """Tells Kueue, once, that all pods of the run are up: where it is set to wait for that (waitForPodsReady), it takes
    the quota of a run that never says so."""
    live = workload_of(seen.children, seen.run.name)
    if live is None or not _admitted(live) or has_condition(live, "PodsReady"):
        return Changes()
    ready = _condition(seen, "PodsReady", "True", "Started", "all pods of the run are ready")
    return Changes(updates=(_with_conditions(seen, live, ready),))


def admitted_spec(children: Children, run: str, spec: GymTrainingRunSpec) -> GymTrainingRunSpec:
    """Returns the spec with as many servers as were admitted: fewer vLLM servers than it asks for where its
    minReplicas allows that, and no more of any than Kueue has counted."""
    live = workload_of(children, run)
    counts = _counts(live) if live is not None and has_condition(live, "QuotaReserved") else {}
    changed = spec
    for block in ("inference", "gateway"):
        wanted = getattr(spec, block).replicas
        if counts.get(block, wanted) < wanted:
            less = getattr(spec, block).model_copy(update={"replicas": counts[block]})
            changed = changed.model_copy(update={block: less})
    return changed


def assigned_flavors(live: Object) -> list[str]:
    """Returns the names of the ResourceFlavors that Kueue assigned to a Workload."""
    return sorted({str(name) for one in _assignments(live) for name in (one.get("flavors") or {}).values()})


def has_pods(seen: Observation) -> bool:
    """Whether anything of the run still has pods that count for its quota."""
    makers = seen.children.of("Deployment") + seen.children.of(leader_worker_set.KIND) + seen.children.of("Job")
    return bool(makers) or any(seen.children.pods(role) for role in _WITH_PODS)


# ── the Workload's states ────────────────────────────────────────────────────────────────────────


def _enqueue(
    seen: Observation, run: RunContext, gym: GymServers, verdict: Verdict, before: GymTrainingRunStatus
) -> AdmissionStep:
    if has_pods(seen):  # somebody deleted the Workload, and its quota with it
        return _stopped(seen, run, Changes(), Reason.EVICTED, "its Workload was deleted; its pods stop")
    made = manifests.workload(run, gym, seen.run.queue, seen.priority)
    if len(made["spec"]["podSets"]) > kueue.MAX_POD_SETS:
        text = (
            f"spec.gym.servers: the run has {len(made['spec']['podSets'])} kinds of pods, and Kueue takes "
            f"{kueue.MAX_POD_SETS}: give several Gym servers the same resources and template"
        )
        return AdmissionStep(run, Changes(), waits=True, failure=Failure(Reason.INVALID_SPEC, text))
    changes = Changes(apply=(*_kept_verdict(run, gym, verdict), made))
    old = before.condition(ConditionType.ADMITTED)
    text = f"queued in LocalQueue {seen.run.queue}"
    if old is not None and old.reason == Reason.EVICTED:
        text = f"{text} again"
    return _waiting(run, changes, Reason.WAITING_FOR_QUOTA, text)


def _kept_verdict(run: RunContext, gym: GymServers, verdict: Verdict) -> tuple[Object, ...]:
    """Returns the ConfigMaps, so that the verdict outlives the preflight pod, however long the wait is."""
    documents = {"gym": verdict.gym.model_dump(mode="json"), "trainer": verdict.trainer.model_dump(mode="json")}
    return run_config_map(run, gym), gym_config_map(run, gym, verdict.hash, documents)


def _pending(seen: Observation, run: RunContext, gym: GymServers, verdict: Verdict, live: Object) -> AdmissionStep:
    """Waits. What changes meanwhile is asked for without losing the place."""
    changes = Changes(apply=_kept_verdict(run, gym, verdict))
    if update := _updated(seen, run, gym, live):
        changes = changes.and_then(Changes(updates=(update,)))
    evicted = condition(live, "Evicted")
    reserved = condition(live, "QuotaReserved")
    why = _words(evicted if live["spec"].get("active") is False else reserved)
    if not reserved and age_of(live, seen.now) > _UNSEEN_SECONDS:
        why = (
            f"Kueue hasn't looked at Workload {name_of(live)} for {_UNSEEN_SECONDS:.0f} s: is its controller running "
            "(kubectl get pods -n kueue-system)?"
        )
    text = f"waits in LocalQueue {live['spec'].get('queueName', '')}{f': {why}' if why else ''}"
    stopped = _stopped(seen, run, changes, Reason.WAITING_FOR_QUOTA, text)
    needs_look = None if reserved else _UNSEEN_SECONDS
    return replace(stopped, changes=stopped.changes.and_then(Changes(requeue_after=needs_look)))


def _with_quota(seen: Observation, run: RunContext, gym: GymServers, live: Object) -> AdmissionStep:
    evicted = condition(live, "Evicted")
    admitted, few = _as_admitted(seen, run, gym, live)
    stated = Changes(conditions=(true_condition(ConditionType.ADMITTED, Reason.ADMITTED, _how(seen, live, few)),))
    if any(has_condition(job, "Complete") for job in seen.children.of("Job")):
        return AdmissionStep(admitted, stated)  # whatever Kueue wants, the end of the run comes next
    if evicted.get("status") == "True":
        why = _words(evicted)
        released = () if has_pods(seen) else (_release(seen, live, evicted),)
        return _stopped(seen, run, Changes(updates=released), Reason.EVICTED, why)
    if config_hash(live) != manifests.needs_hash(run, gym):
        gone = () if has_pods(seen) else (Deletion.of(live),)
        text = "the run now needs something other than what was admitted, and is queued again"
        return _stopped(seen, run, Changes(delete=gone), Reason.EVICTED, text)
    if not has_condition(live, "Admitted"):
        checks = [
            f"{one.get('name')} is {one.get('state')}{f': {text}' if (text := one.get('message')) else ''}"
            for one in (live.get("status") or {}).get("admissionChecks") or []
            if one.get("state") != "Ready"
        ]
        text = f"has quota, and waits for {'; '.join(checks) or 'its admission'}"
        return _stopped(seen, run, Changes(), Reason.WAITING_FOR_QUOTA, text)
    if (wanted := manifests.priority_fields(seen.priority)) and _differs(live, wanted):
        stated = stated.and_then(Changes(updates=(Update(live, {"spec": wanted}),)))
    return AdmissionStep(admitted, stated)


def _words(stated: Mapping[str, Any]) -> str:
    """Returns what Kueue says in a condition. "Pending" is its reason for everything, unless it is set to tell more."""
    reason, message = str(stated.get("reason", "")), str(stated.get("message", ""))
    return message if reason == "Pending" else f"{reason}: {message}".strip(": ")


def _how(seen: Observation, live: Object, few: str) -> str:
    admission = (live.get("status") or {}).get("admission") or {}
    parts = [f"ClusterQueue {admission.get('clusterQueue', '')} admitted the run"]
    flavors = assigned_flavors(live)
    parts += [f"flavors {', '.join(flavors)}"] if flavors else []
    parts += [few] if few else []
    queue = live["spec"].get("queueName", "")
    if seen.run.queue != queue:
        parts.append(f"the label {kueue.QUEUE_LABEL} has changed, which counts from the next time that it is queued")
    return "; ".join(parts)


def _stopped(seen: Observation, run: RunContext, changes: Changes, reason: Reason, text: str) -> AdmissionStep:
    """Waits without pods: those that are there go, the trainer with a checkpoint as in a suspended run."""
    if not has_pods(seen):
        return _waiting(run, changes, reason, text)
    stopping = stop_all(seen).and_then(Changes(requeue_after=_POLL_SECONDS))
    return _waiting(run, changes.and_then(stopping), reason, f"{text}; its pods stop")


def _waiting(run: RunContext, changes: Changes, reason: Reason, text: str) -> AdmissionStep:
    stated = tuple(false_condition(kind, reason, text) for kind in (ConditionType.ADMITTED, ConditionType.PROGRESSING))
    return AdmissionStep(run, changes.and_then(Changes(conditions=stated)), waits=True)


def _runs_without(seen: Observation, before: GymTrainingRunStatus) -> bool:
    """Whether the run began without a queue: a label that comes later counts when the run is suspended and resumed."""
    return before.condition(ConditionType.ADMITTED) is None and has_pods(seen)


# ── what was admitted ────────────────────────────────────────────────────────────────────────────


def _admitted(live: Object) -> bool:
    return has_condition(live, "Admitted") and not has_condition(live, "Evicted")


def _assignments(live: Object) -> list[Object]:
    admission = (live.get("status") or {}).get("admission") or {}
    return list(admission.get("podSetAssignments") or [])


def _counts(live: Object) -> dict[str, int]:
    return {str(one["name"]): int(one["count"]) for one in _assignments(live) if "count" in one}


def _as_admitted(seen: Observation, run: RunContext, gym: GymServers, live: Object) -> tuple[RunContext, str]:
    """Returns the run with what was admitted, and says which servers are fewer than the spec asks for."""
    spec = admitted_spec(seen.children, run.name, run.spec)
    few = [
        f"{block} runs with {getattr(spec, block).replicas} of {getattr(run.spec, block).replicas} replicas"
        for block in ("inference", "gateway")
        if getattr(spec, block).replicas < getattr(run.spec, block).replicas
    ]
    servers = _fewer_gym_servers(run, gym, _counts(live))
    if servers:
        few.append(f"Gym servers {', '.join(sorted(servers))} with fewer replicas")
        own = {**spec.gym.servers, **servers}
        spec = spec.model_copy(update={"gym": spec.gym.model_copy(update={"servers": own})})
    admission = {str(one["name"]): _of_pod_set(seen, live, one) for one in _assignments(live)}
    return replace(run, spec=spec, admission=admission), ", ".join(few)


def _fewer_gym_servers(run: RunContext, gym: GymServers, counts: Mapping[str, int]) -> dict[str, GymServer]:
    """Returns the Gym servers that asked for more replicas after they were admitted, with those that they have room
    for; each has one at least, as its set has."""
    wanted = {name: run.spec.gym.servers.get(name, GymServer()) for name in gym_server_kinds(run, gym)}
    left, sets = dict(counts), gym_pod_sets(run, gym)
    fewer: dict[str, GymServer] = {}
    waiting = [sets[name] for name in wanted]
    for name, server in wanted.items():
        pod_set = sets[name]
        waiting.remove(pod_set)
        room = max(1, left.get(pod_set, server.replicas) - waiting.count(pod_set))
        if server.replicas > room:
            fewer[name] = server.model_copy(update={"replicas": room})
        left[pod_set] = left.get(pod_set, server.replicas) - min(room, server.replicas)
    return fewer


def _of_pod_set(seen: Observation, live: Object, assignment: Object) -> PodSetAdmission:
    """Returns what Kueue adds to the pods of a set, by its flavors, its admission checks and the places it chose."""
    name = str(assignment["name"])
    selector: dict[str, str] = {}
    tolerations: list[Object] = []
    for flavor in sorted(set((assignment.get("flavors") or {}).values())):
        spec = seen.flavors.get(flavor, {})
        selector |= spec.get("nodeLabels") or {}
        tolerations += [one for one in spec.get("tolerations") or [] if one not in tolerations]
    more_labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for update in _check_updates(live, name):
        selector |= update.get("nodeSelector") or {}
        tolerations += [one for one in update.get("tolerations") or [] if one not in tolerations]
        more_labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    placed = assignment.get("topologyAssignment") is not None
    if placed:
        more_labels[kueue.POD_SET_LABEL] = name
        annotations[kueue.WORKLOAD_ANNOTATION] = name_of(live)
        asked = {one["name"] for one in live["spec"].get("podSets") or [] if one.get("topologyRequest")}
        if name not in asked:  # the flavor places all pods, and Kueue knows those that it places by such an annotation
            annotations[kueue.TOPOLOGY_ANNOTATIONS["unconstrained"]] = "true"
    gates = (kueue.TOPOLOGY_GATE,) if placed else ()
    return PodSetAdmission(selector, tuple(tolerations), more_labels, annotations, gates)


def _check_updates(live: Object, pod_set: str) -> Iterator[Object]:
    for check in (live.get("status") or {}).get("admissionChecks") or []:
        for update in check.get("podSetUpdates") or []:
            if update.get("name") == pod_set:
                yield update


# ── changes of the Workload ──────────────────────────────────────────────────────────────────────


def _updated(seen: Observation, run: RunContext, gym: GymServers, live: Object) -> Update | None:
    """Returns what has to change in a Workload that holds no quota; None where nothing has."""
    wanted = manifests.workload(run, gym, seen.run.queue, seen.priority)
    changes: dict[str, Any] = {}
    spec = {key: value for key, value in wanted["spec"].items() if key != "podSets"}
    if _differs(live, spec):
        changes["spec"] = spec
    if config_hash(live) != config_hash(wanted) or _shape(live["spec"]) != _shape(wanted["spec"]):
        changes["spec"] = wanted["spec"]
        changes["metadata"] = {"annotations": wanted["metadata"]["annotations"]}
    return Update(live, changes) if changes else None


def _differs(live: Object, wanted: Mapping[str, Any]) -> bool:
    return any(live["spec"].get(key) != value for key, value in wanted.items())


def _shape(spec: Object) -> list[tuple[Any, ...]]:
    """Returns the numbers of pods."""
    return [(one.get("name"), one.get("count"), one.get("minCount")) for one in spec.get("podSets") or []]


def _release(seen: Observation, live: Object, evicted: Mapping[str, Any]) -> Update:
    """Gives the quota of an evicted run back: Kueue leaves that to whoever stops the pods."""
    reason, message = str(evicted.get("reason", "")), str(evicted.get("message", ""))
    again = "True" if reason in _REQUEUED_AT_ONCE else "False"
    changed = [
        _condition(seen, "QuotaReserved", "False", "Pending", message),
        _condition(seen, "Admitted", "False", "NoReservation", "The workload has no reservation"),
        _condition(seen, "Requeued", again, reason or "Evicted", message),
    ]
    if has_condition(live, "PodsReady"):
        changed.append(_condition(seen, "PodsReady", "False", "WaitForStart", "the run has no pods"))
    done = _with_conditions(seen, live, *changed)
    return replace(done, changes={"status": {**done.changes["status"], "admission": None}})


def _condition(seen: Observation, kind: str, status: str, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_MAX_CONDITION_MESSAGE],
        "lastTransitionTime": to_text(seen.now),
    }


def _with_conditions(seen: Observation, live: Object, *changed: Object) -> Update:
    """Returns the Workload's status with some conditions replaced. A merge patch replaces lists as a whole, so it holds
    the others, and the API server refuses it where they have changed."""
    new = {one["type"]: one for one in changed}
    kept = [new.pop(one["type"], one) for one in (live.get("status") or {}).get("conditions") or []]
    return Update(live, {"status": {"conditions": [*kept, *new.values()]}}, subresource="status")
