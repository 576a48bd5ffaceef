"""What breaks on the real cluster: processes and pods of each part, the node's daemons, the control plane, DNS, network
and storage."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dev.settings import NODE_NAME
from gymtrain_api import labels
from tests.chaos.cluster_world import UNANSWERED, ClusterWorld
from tests.chaos.fault import Fault, Hit, NothingToHit
from tests.chaos.hand_faults import BY_HAND, SERVERS, ends_of, pause, running_pod, said
from tests.chaos.story import Ends, Story
from tests.support import node
from tests.support.chaos import Mode, set_chaos
from tests.support.faults import post_to_vllm
from tests.support.install import OPERATOR_NAMESPACE
from tests.support.pod_cut import cut_between

type Object = dict[str, Any]

_ALL = (*SERVERS, "trainer")
_SMALL_FILE = 64 << 10
_CORDON = f"/api/v1/nodes/{NODE_NAME}"
_OPERATOR = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/gymtrain-operator"
_DNS = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _attempts(*stories: Story) -> tuple[tuple[Story, Ends | None], ...]:
    """Each of these may cost its run an attempt, or its preflight."""
    return tuple((story, "attempt") for story in stories)


# ── processes and pods ───────────────────────────────────────────────────────────────────────────


async def _process_killed(world: ClusterWorld, draw: random.Random, *, roles: Sequence[str]) -> Hit:
    pod, story = await running_pod(world, draw, *roles)
    pids = await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"])
    if not pids:
        raise NothingToHit
    pid = draw.choice(sorted(pids))
    _signal([pid], signal.SIGKILL)
    return Hit(f"{said(pod)}: {pids[pid][:60]}", ((story, ends_of(pod) or "attempt"),))


async def _pod_stopped(world: ClusterWorld, draw: random.Random, *, roles: Sequence[str]) -> Hit:
    pod, story = await running_pod(world, draw, *roles)
    pids = sorted(await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"]))
    _signal(pids, signal.SIGSTOP)
    try:
        seconds = await pause(draw, 2, 40)
    finally:
        _signal(pids, signal.SIGCONT)
    return Hit(f"{said(pod)} for {seconds:.1f} s", _attempts(story))


async def _vllm_paused(world: ClusterWorld, draw: random.Random) -> Hit:
    pod, story = await running_pod(world, draw, "inference")
    kubectl = world.kubectl(story.life.namespace)
    try:
        await asyncio.to_thread(post_to_vllm, kubectl, story.life.name, "/pause?mode=keep")
    except UNANSWERED as error:
        raise NothingToHit from error
    return Hit(said(pod), _attempts(story))


async def _gym_misbehaves(world: ClusterWorld, draw: random.Random) -> Hit:
    stories = [s for s in world.alive("Training") if s.life.kind == "good"]
    if not stories:
        raise NothingToHit
    story = draw.choice(sorted(stories, key=lambda one: one.key))
    modes: tuple[Mode, ...] = ("error", "hang", "slow", "garbage")
    mode = draw.choice(modes)
    kubectl = world.kubectl(story.life.namespace)
    seconds = 0.0
    with suppress(*UNANSWERED):
        await asyncio.to_thread(set_chaos, kubectl, story.life.name, "reasoning_gym", mode)
        seconds = await pause(draw, 5, 30)
    for _ in range(60):  # the API server may be broken just now
        try:
            await asyncio.to_thread(set_chaos, kubectl, story.life.name, "reasoning_gym", "")
            break
        except UNANSWERED:
            await asyncio.sleep(2)
    return Hit(f"{story.key}: {mode} for {seconds:.1f} s", _attempts(story))


async def _sandbox_killed(world: ClusterWorld, draw: random.Random) -> Hit:
    pod, story = await running_pod(world, draw, "sandbox")
    if draw.random() < 0.5:
        await world.rest.done("DELETE", world.path("pods", pod), {"gracePeriodSeconds": 0}, but=(404,))
        return Hit(f"{said(pod)} deleted", _attempts(story))
    pids = await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"])
    _signal(sorted(pids), signal.SIGKILL)
    return Hit(f"{said(pod)} killed", _attempts(story))


# ── node and control plane ───────────────────────────────────────────────────────────────────────


async def _daemon_killed(world: ClusterWorld, draw: random.Random, *, name: str) -> Hit:
    seconds = draw.uniform(0, 10)
    await asyncio.to_thread(node.restart, world.settings, name, seconds)
    return Hit(f"{name}, away for {seconds:.1f} s")


async def _daemon_stopped(world: ClusterWorld, draw: random.Random, *, name: str) -> Hit:
    return await _during(draw, node.stopped(world.settings, name), name, most=20)


async def _node_not_ready(world: ClusterWorld, draw: random.Random) -> Hit:
    """The kubelet is away for so long that the control plane notices."""

    def away() -> float:
        seconds = draw.uniform(45, 90)
        with node.away(world.settings):
            time.sleep(seconds)
        return seconds

    seconds = await asyncio.to_thread(away)
    return Hit(f"for {seconds:.1f} s", _attempts(*world.alive()))


async def _drained(world: ClusterWorld, draw: random.Random) -> Hit:
    await world.rest.done("PATCH", _CORDON, {"spec": {"unschedulable": True}})
    try:
        evicted = 0
        if draw.random() < 0.6:
            for pod in await world.owned("pods"):
                name = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": name}
                status, _ = await world.rest.ask("POST", f"{world.path('pods', pod)}/eviction", eviction)
                evicted += status < 300
        seconds = await pause(draw, 5, 40)
    finally:
        await world.rest.done("PATCH", _CORDON, {"spec": {"unschedulable": None}})
    return Hit(f"cordoned for {seconds:.1f} s, {evicted} pods evicted")


# ── DNS, network, storage ────────────────────────────────────────────────────────────────────────


async def _dns_gone(world: ClusterWorld, draw: random.Random) -> Hit:
    seconds = await _without_pods(world, draw, _DNS)
    return Hit(f"for {seconds:.1f} s", _attempts(*world.alive()))


async def _without_pods(world: ClusterWorld, draw: random.Random, deployment: str) -> float:
    """Seconds for which a Deployment had none."""
    await world.rest.done("PATCH", deployment, {"spec": {"replicas": 0}})
    try:
        return await pause(draw, 5, 60)
    finally:
        await world.rest.done("PATCH", deployment, {"spec": {"replicas": 1}})


async def _network_cut(world: ClusterWorld, draw: random.Random) -> Hit:
    """Between one pod of a run and all its pods of another role."""
    pod, story = await running_pod(world, draw, *_ALL)
    own = pod["metadata"]["labels"][labels.ROLE]
    others = [p for p in await world.owned("pods", selector=f"{labels.RUN}={story.life.name}") if _address(p)]
    roles = sorted({p["metadata"]["labels"].get(labels.ROLE, "") for p in others} - {own, ""})
    if not roles or not _address(pod):
        raise NothingToHit
    role = draw.choice(roles)
    addresses = [_address(p) for p in others if p["metadata"]["labels"].get(labels.ROLE) == role]
    hit = await _during(draw, cut_between([_address(pod)], addresses), f"{said(pod)} from {role}", most=40)
    return Hit(hit.what, _attempts(story))


def _address(pod: Object) -> str:
    return str(pod["status"].get("podIP", ""))


async def _no_space(world: ClusterWorld, draw: random.Random) -> Hit:
    """No process of a trainer can make a file of more than 64 KiB: what a full volume does to checkpoints, without
    filling this machine's disk."""
    pod, story = await running_pod(world, draw, "trainer")
    pids = sorted(await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"]))
    try:
        await asyncio.to_thread(_limit, pids, str(_SMALL_FILE))
        seconds = await pause(draw, 5, 30)
    finally:
        await asyncio.to_thread(_limit, pids, "unlimited")
    return Hit(f"{said(pod)} for {seconds:.1f} s", _attempts(story))


def _limit(pids: Sequence[int], size: str) -> None:
    """As each process's own user, who may: root in some virtual machines lacks CAP_SYS_RESOURCE."""
    for pid in pids:
        process = Path(f"/proc/{pid}")
        try:
            owner = process.stat()
        except FileNotFoundError:
            continue
        command = ["prlimit", f"--pid={pid}", f"--fsize={size}:unlimited"]
        done = subprocess.run(
            command, user=owner.st_uid, group=owner.st_gid, capture_output=True, text=True, timeout=10
        )
        if done.returncode and process.exists():
            raise OSError(done.stderr.strip())


# ── the operator ─────────────────────────────────────────────────────────────────────────────────


async def _operator_pod(world: ClusterWorld) -> Object:
    found = await world.rest.items(f"{_OPERATOR}/pods", "app.kubernetes.io/name=gymtrain")
    running = [pod for pod in found if pod["status"].get("phase") == "Running"]
    if not running:
        raise NothingToHit
    return running[0]


async def _operator_killed(world: ClusterWorld, draw: random.Random) -> Hit:
    pod = await _operator_pod(world)
    if draw.random() < 0.5:
        await world.rest.done("DELETE", f"{_OPERATOR}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        return Hit("its pod was deleted")
    _signal(sorted(await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"])), signal.SIGKILL)
    return Hit("SIGKILL")


async def _operator_stopped(world: ClusterWorld, draw: random.Random) -> Hit:
    pod = await _operator_pod(world)
    pids = sorted(await asyncio.to_thread(node.processes_of, pod["metadata"]["uid"]))
    _signal(pids, signal.SIGSTOP)
    try:
        seconds = await pause(draw, 2, 30)
    finally:
        _signal(pids, signal.SIGCONT)
    return Hit(f"for {seconds:.1f} s")


async def _operator_away(world: ClusterWorld, draw: random.Random) -> Hit:
    return Hit(f"for {await _without_pods(world, draw, _DEPLOYMENT):.1f} s")


async def _during(draw: random.Random, broken: AbstractContextManager[None], what: str, most: float) -> Hit:
    """Something is broken for a while, in a thread: what waits for it must not hold up the others."""

    def hold() -> float:
        seconds = draw.uniform(1, most)
        with broken:
            time.sleep(seconds)
        return seconds

    return Hit(f"{what} for {await asyncio.to_thread(hold):.1f} s")


_RESTARTED = (
    "kubelet",
    "containerd",
    "kube-apiserver",
    "etcd",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kube-router",
)
_STOPPED = ("kube-apiserver", "etcd", "kubelet", "containerd")

_MADE: list[Fault[ClusterWorld]] = [
    Fault("server process killed", partial(_process_killed, roles=SERVERS), weight=6),
    Fault("trainer process killed", partial(_process_killed, roles=("trainer",)), weight=4),
    Fault("preflight process killed", partial(_process_killed, roles=("preflight",)), weight=1),
    Fault("pod stopped", partial(_pod_stopped, roles=_ALL), weight=5),
    Fault("vLLM paused", _vllm_paused, weight=2),
    Fault("Gym server misbehaves", _gym_misbehaves, part="gym", weight=4),
    Fault("sandbox killed", _sandbox_killed, weight=4),
    *(Fault(f"{name} killed", partial(_daemon_killed, name=name), part="daemons", weight=1) for name in _RESTARTED),
    *(Fault(f"{name} stopped", partial(_daemon_stopped, name=name), part="daemons", weight=1) for name in _STOPPED),
    Fault("node NotReady", _node_not_ready, part="daemons", weight=1),
    Fault("node drained", _drained, part="node", weight=2),
    Fault("DNS gone", _dns_gone, part="dns", weight=3),
    Fault("network cut", _network_cut, part="network", weight=5),
    Fault("no space for checkpoints", _no_space, weight=3),
    Fault("operator killed", _operator_killed, part="operator", weight=3, renews_operator=True),
    Fault("operator stopped", _operator_stopped, part="operator", weight=2),
    Fault("operator away", _operator_away, part="operator", weight=2, renews_operator=True),
]
FAULTS: list[Fault[ClusterWorld]] = [*_MADE, *BY_HAND]
"""All kinds of faults of this half."""
