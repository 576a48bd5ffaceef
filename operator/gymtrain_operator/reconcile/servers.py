"""The servers of a run: the Gym servers, the gateway, vLLM and the sandbox broker; and how ready they are."""

from dataclasses import dataclass, replace

from gymtrain_api import coscheduling, labels, leader_worker_set, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.pods import condition
from gymtrain_api.status import GymTrainingRunStatus, InferenceStatus, ServerKind, ServerStatus, WeightSyncStatus
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.broker import broker_identity, broker_objects, broker_url
from gymtrain_operator.manifests.config_maps import (
    gateway_url,
    gym_config_map,
    gym_url,
    inference_url,
    run_config_map,
)
from gymtrain_operator.manifests.context import GymServers, RunContext
from gymtrain_operator.manifests.gang import pod_group
from gymtrain_operator.manifests.gateway import gateway_objects
from gymtrain_operator.manifests.gym import gym_objects, gym_server_kinds, gym_settings, server_label
from gymtrain_operator.manifests.inference import CONTAINER as INFERENCE_CONTAINER
from gymtrain_operator.manifests.inference import inference_objects
from gymtrain_operator.manifests.network import network_policies
from gymtrain_operator.manifests.trainer import trainer_service
from gymtrain_operator.manifests.volumes import is_shared_with_vllm, is_single_node_volume, volume_claims
from gymtrain_operator.reconcile import weight_sync
from gymtrain_operator.reconcile.changes import Changes, Failure
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition, true_condition
from gymtrain_operator.reconcile.observation import Observation, Verdict, age_of, is_deleting, name_of
from gymtrain_operator.reconcile.pod_diagnosis import first_problem, has_started, is_over, last_failure, node_of
from gymtrain_operator.reconcile.sandbox_backend import BackendChoice, choose_backend

_PROBE_AGAIN_SECONDS = 1.0
_CONTROLLER_SECONDS = 60.0  # in which LWS's controller should have looked at a new LeaderWorkerSet


@dataclass(frozen=True)
class ServersStep:
    """The servers' objects and state.

    Attributes:
        waiting_for: what the servers lack, for a person; empty when all are ready.
        failure: no weight transport works with these servers.
    """

    changes: Changes
    statuses: tuple[ServerStatus, ...]
    weight_sync: WeightSyncStatus | None
    waiting_for: str
    failure: Failure | None = None


@dataclass(frozen=True)
class _ServerState:
    """One server. `problem` is what is wrong with its pods, for a person."""

    status: ServerStatus
    ready: bool
    problem: str


def _found_servers(verdict: Verdict) -> GymServers:
    """Returns the Gym servers that preflight found."""
    return GymServers(tuple(verdict.gym.servers), dict(verdict.gym.config))


def step(seen: Observation, run: RunContext, verdict: Verdict, before: GymTrainingRunStatus) -> ServersStep:
    """Builds the servers that the run should have, and says how far they are."""
    gym = _found_servers(verdict)
    choice = choose_backend(seen, run) if run.spec.sandboxes else None
    documents = {"gym": verdict.gym.model_dump(mode="json"), "trainer": verdict.trainer.model_dump(mode="json")}
    # ConfigMaps first: a pod that starts before its ConfigMap waits for the kubelet's next try.
    objects = (
        run_config_map(run, gym),
        gym_config_map(run, gym, verdict.hash, documents),
        *network_policies(run),
        *volume_claims(run, in_use=True),
        *_broker(run, choice),
        trainer_service(run),
        *pod_group(run, _group_with_pods(seen, run)),
        *inference_objects(run),
        *gateway_objects(run),
        *gym_objects(run, gym),
    )
    gym_states = [_gym_state(seen, run, name, kind) for name, kind in gym_server_kinds(run, gym).items()]
    inference = _inference_state(seen, run)
    gateway = _gateway_state(seen, run)
    brokers = [_broker_state(seen, run, choice)] if choice else []
    sync = weight_sync.step(seen, run, before)
    conditions = [
        _readiness(ConditionType.GYM_READY, gym_states, "Gym servers", before),
        _readiness(ConditionType.INFERENCE_READY, [inference], "vLLM", before),
        _readiness(ConditionType.GATEWAY_READY, [gateway], "gateway", before),
        *(_readiness(ConditionType.SANDBOXES_READY, [broker], "sandbox broker", before) for broker in brokers),
    ]
    waiting = [one.message for one in conditions if one.status != "True"]
    if choice is not None and choice.backend is not None:
        of_broker = conditions[-1]
        message = f"{of_broker.message}. Backend {choice.backend}: {choice.why}"
        conditions[-1] = replace(of_broker, message=message)
    return ServersStep(
        Changes(
            apply=objects,
            conditions=(*conditions, sync.condition),
            requeue_after=_PROBE_AGAIN_SECONDS if choice is not None and choice.backend is None else None,
        ),
        tuple(state.status for state in [*gym_states, gateway, *brokers, inference]),
        sync.status,
        "; ".join(waiting),
        sync.failure,
    )


def _group_with_pods(seen: Observation, run: RunContext) -> Object | None:
    """Returns the PodGroup; None where vLLM's pods are still to be made, so that it can have another number."""
    group = seen.children.get(coscheduling.KIND, names.pod_group(run.name))
    return group if seen.children.vllm(run.name) else None


def inference_status(seen: Observation, *, ended: bool) -> InferenceStatus:
    """Returns the vLLM servers as an autoscaler sees them. There is a selector at all times: without one, an autoscaler
    reports an error for a run that is suspended. A run that has ended has no servers, though their pods may still be on
    their way out: its status isn't written again when they are gone."""
    there = [pod for pod in seen.children.servers(labels.Role.INFERENCE) if not ended and not is_over(pod)]
    selector = f"{labels.RUN}={seen.run.name},{labels.ROLE}={labels.Role.INFERENCE}"
    return InferenceStatus(replicas=len(there), selector=selector)


def _server_state(
    name: str, kind: ServerKind, url: str, deployment: Object | None, wanted: int, pods: list[Object]
) -> _ServerState:
    """Returns how one server is, by its Deployment and its pods; `wanted` is the number of pods that the spec asks
    for."""
    status = (deployment or {}).get("status") or {}
    ready = min(int(status.get("readyReplicas", 0)), wanted)
    problem = first_problem(pods)
    if deployment is not None and not problem:
        failed = condition(deployment, "ReplicaFailure")
        problem = f"no pod can be made: {failed.get('message', '')}" if failed.get("status") == "True" else ""
    shown = ServerStatus(
        name=name,
        kind=kind,
        url=url,
        ready=f"{ready}/{wanted}",
    )
    return _ServerState(shown, deployment is not None and ready >= wanted, problem)


def _readiness(
    kind: ConditionType, states: list[_ServerState], what: str, before: GymTrainingRunStatus
) -> StatedCondition:
    """States the condition of `kind` over some servers, which a person knows as `what`."""
    waiting = [state for state in states if not state.ready]
    if not waiting:
        count = sum(int(state.status.ready.split("/")[0]) for state in states)
        return true_condition(kind, Reason.ALL_READY, f"{what}: all {count} pods are ready")
    # Once ready, a server that is not is news; before that it is the way up.
    old = before.condition(kind)
    was_ready = before.is_true(kind) or (old is not None and old.reason == Reason.PODS_NOT_READY)
    names_text = ", ".join(f"{state.status.name} ({state.status.ready})" for state in waiting)
    text = f"{what}: waiting for {names_text}"
    problem = next((state.problem for state in waiting if state.problem), "")
    reason = Reason.PODS_NOT_READY if was_ready else Reason.PODS_STARTING
    return false_condition(kind, reason, f"{text}: {problem}" if problem else text)


def _gym_state(seen: Observation, run: RunContext, name: str, kind: ServerKind) -> _ServerState:
    deployment = seen.children.get("Deployment", run.gym_server(name))
    pods = seen.children.servers(labels.Role.GYM, server_label(name))
    wanted = gym_settings(run, name).replicas
    return _server_state(name, kind, gym_url(run, name), deployment, wanted, pods)


def _inference_state(seen: Observation, run: RunContext) -> _ServerState:
    """Returns how vLLM is: its servers, which are the leaders of groups where each of them spans several pods."""
    pods = seen.children.servers(labels.Role.INFERENCE)
    wanted = run.spec.inference.replicas
    if run.spec.inference.nodes == 1:
        deployment = seen.children.get("Deployment", names.inference(run.name))
        state = _server_state("inference", "inference", inference_url(run), deployment, wanted, pods)
        members = pods
    else:
        state = _group_state(seen, run, pods)
        members = pods + seen.children.servers(labels.Role.INFERENCE_WORKER)
    stuck = _on_another_node(seen, run, members)
    if stuck and not state.ready:
        return _ServerState(state.status, False, stuck)
    started = sum(has_started(pod, INFERENCE_CONTAINER) for pod in pods)
    if state.ready or state.problem or not started:
        return state
    what = "pods" if run.spec.inference.nodes == 1 else "servers"
    text = f"{started} of {wanted} vLLM {what} are up and wait for the trainer's first weights"
    return _ServerState(state.status, False, text)


def _group_state(seen: Observation, run: RunContext, leaders: list[Object]) -> _ServerState:
    """Returns how servers of several pods are. A leader is ready only if its workers are part of the server, so the
    leaders' readiness is the servers'."""
    groups = seen.children.get(leader_worker_set.KIND, names.inference_groups(run.name))
    wanted = run.spec.inference.replicas
    ready = min(sum(condition(pod, "Ready").get("status") == "True" for pod in leaders), wanted)
    shown = ServerStatus(name="inference", kind="inference", url=inference_url(run), ready=f"{ready}/{wanted}")
    workers = seen.children.servers(labels.Role.INFERENCE_WORKER)
    problem = first_problem([*leaders, *workers]) or _recreated(seen) or _without_controller(seen, groups)
    return _ServerState(shown, groups is not None and ready >= wanted, problem)


def _recreated(seen: Observation) -> str:
    """Says which container failed, so that its whole group is on its way out: the new group's pods don't know it."""
    roles = (labels.Role.INFERENCE, labels.Role.INFERENCE_WORKER)
    for pod in (pod for role in roles for pod in seen.children.pods(role) if is_deleting(pod)):
        if failed := last_failure(pod):
            return f"{failed}; its group of pods is made anew"
    return ""


def _without_controller(seen: Observation, groups: Object | None) -> str:
    """Says that nobody carries out the LeaderWorkerSet; empty if its controller does, or may still."""
    if groups is None or groups.get("status") or age_of(groups, seen.now) <= _CONTROLLER_SECONDS:
        return ""
    return (
        f"{leader_worker_set.KIND} {name_of(groups)} has had no status for {_CONTROLLER_SECONDS:.0f} s: is LWS's "
        "controller running (kubectl get pods -n lws-system)?"
    )


def _on_another_node(seen: Observation, run: RunContext, pods: list[Object]) -> str:
    """Says which vLLM pod waits for a volume that the trainer has on another node; empty if none does."""
    if not is_shared_with_vllm(run) or not is_single_node_volume(run):
        return ""
    trainers = {node_of(pod) for pod in seen.children.servers(labels.Role.TRAINER)} - {""}
    for pod in pods:
        node = node_of(pod)
        if trainers and node and node not in trainers and not has_started(pod, INFERENCE_CONTAINER):
            return (
                f"pod {name_of(pod)} on node {node} shares the checkpoint volume with the trainer on node "
                f"{min(trainers)}, and a ReadWriteOnce volume works on one node only: apply the "
                "run again with spec.trainer.checkpoint.accessModes: [ReadWriteMany], or keep both on one node with a "
                "nodeSelector in their templates"
            )
    return ""


def _gateway_state(seen: Observation, run: RunContext) -> _ServerState:
    deployment = seen.children.get("Deployment", names.gateway(run.name))
    pods = seen.children.servers(labels.Role.GATEWAY)
    return _server_state("gateway", "gateway", gateway_url(run), deployment, run.spec.gateway.replicas, pods)


def _broker_state(seen: Observation, run: RunContext, choice: BackendChoice) -> _ServerState:
    deployment = seen.children.get("Deployment", names.broker(run.name))
    pods = seen.children.servers(labels.Role.BROKER)
    state = _server_state("broker", "broker", broker_url(run), deployment, 1, pods)
    return state if choice.backend else _ServerState(state.status, False, choice.why)


def _broker(run: RunContext, choice: BackendChoice | None) -> list[Object]:
    """Builds the broker, once it is known what it makes sandboxes of."""
    if choice is None or choice.backend is None:
        return list(choice.probe) if choice else []
    return [*broker_identity(run, choice.backend), *broker_objects(run, choice.backend, choice.why)]
