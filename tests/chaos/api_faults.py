"""What breaks around the operator where the API server is real and the pods are played."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gymtrain_api import labels
from tests.chaos.api_world import NAMESPACES, ApiWorld
from tests.chaos.fault import Fault, Hit, NothingToHit
from tests.chaos.hand_faults import BY_HAND, SERVERS, ends_of, pause, running_pod, said
from tests.support.breakable_node import NODES, Mood
from tests.support.broken_api import Trouble

type Object = dict[str, Any]

_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_CLUSTER_TAINT = "DeletionByTaintManager"
_DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": _CLUSTER_TAINT, "message": "the node is gone"}]


# ── the operator ─────────────────────────────────────────────────────────────────────────────────


async def _operator_ends(world: ApiWorld, draw: random.Random, *, how: signal.Signals) -> Hit:
    world.operator_may_end = True
    try:
        await asyncio.to_thread(world.operator.stop, how)
        seconds = await pause(draw, 0, 5)
        world.operator.launch()
    finally:
        world.operator_may_end = False
    return Hit(f"{how.name}, away for {seconds:.1f} s")


async def _operator_stopped(world: ApiWorld, draw: random.Random) -> Hit:
    process = world.operator.process
    process.send_signal(signal.SIGSTOP)
    try:
        seconds = await pause(draw, 1, 20)
    finally:
        process.send_signal(signal.SIGCONT)
    return Hit(f"for {seconds:.1f} s")


# ── the API server and the way to it ─────────────────────────────────────────────────────────────


async def _program_stopped(world: ApiWorld, draw: random.Random, *, name: str, most: float) -> Hit:
    world.server.signal(name, signal.SIGSTOP)
    try:
        seconds = await pause(draw, 1, most)
    finally:
        world.server.signal(name, signal.SIGCONT)
        await world.server_is_back()
    return Hit(f"{name} for {seconds:.1f} s")


async def _program_killed(world: ApiWorld, draw: random.Random, *, name: str) -> Hit:
    seconds = draw.uniform(0, 6)
    await asyncio.to_thread(world.server.restart, name, seconds)
    await world.server_is_back()
    return Hit(f"{name}, away for {seconds:.1f} s")


async def _network_cut(world: ApiWorld, draw: random.Random) -> Hit:
    await asyncio.to_thread(world.network.cut)
    try:
        seconds = await pause(draw, 1, 25)
    finally:
        await asyncio.to_thread(world.network.heal)
    return Hit(f"for {seconds:.1f} s")


async def _connections_reset(world: ApiWorld, draw: random.Random) -> Hit:
    times = draw.randint(1, 4)
    for _ in range(times):
        await asyncio.to_thread(world.network.reset)
        await pause(draw, 0, 2)
    return Hit(f"{times} times")


async def _trouble(world: ApiWorld, draw: random.Random, *, trouble: Trouble) -> Hit:
    share = draw.choice((0.2, 0.5, 1.0))
    before = world.api.troubled.get(trouble, 0)
    world.api.begin(trouble, share)
    try:
        seconds = await pause(draw, 2, 12)
    finally:
        world.api.heal()
    requests = world.api.troubled.get(trouble, 0) - before
    return Hit(f"{share:.0%} of what fits for {seconds:.1f} s: {requests} requests")


async def _rights_taken(world: ApiWorld, draw: random.Random) -> Hit:
    found = await world.rest.items(_BINDING)
    (binding,) = (one for one in found if one["metadata"]["name"].startswith("gymtrain-operator"))
    await world.rest.done("DELETE", f"{_BINDING}/{binding['metadata']['name']}", but=(404,))
    try:
        seconds = await pause(draw, 1, 15)
    finally:
        fresh = {key: binding[key] for key in ("roleRef", "subjects")}
        meta = {key: value for key, value in binding["metadata"].items() if key in ("name", "labels", "annotations")}
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
        await world.rest.done("POST", _BINDING, kind | {"metadata": meta} | fresh, but=(409,))
    return Hit(f"for {seconds:.1f} s")


# ── admission ────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _present(world: ApiWorld, collection: str, *objects: Object) -> AsyncIterator[None]:
    """Makes objects of the cluster or a namespace, and takes them away."""
    made = []
    try:
        for item in objects:
            await world.rest.done("POST", collection if len(objects) == 1 else _collection(item), item, but=(409, 404))
            made.append(item)
        yield
    finally:
        for item in reversed(made):
            path = collection if len(objects) == 1 else _collection(item)
            await world.rest.done("DELETE", f"{path}/{item['metadata']['name']}", but=(404,))


def _collection(item: Object) -> str:
    plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(item["kind"], f"{item['kind'].lower()}s")
    return f"{_ADMISSION}/{plural}"


async def _quota(world: ApiWorld, draw: random.Random) -> Hit:
    namespace = draw.choice(NAMESPACES)
    what = draw.choice(("pods", "count/jobs.batch", "count/deployments.apps", "count/configmaps", "services"))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {what: "0"}}}
    async with _present(world, f"/api/v1/namespaces/{namespace}/resourcequotas", quota):
        seconds = await pause(draw, 3, 20)
    return Hit(f"no {what} in {namespace} for {seconds:.1f} s")


_DENIABLE = {
    "jobs": ("batch", "jobs", "CREATE"),
    "pods": ("", "pods", "CREATE"),
    "deployments": ("apps", "deployments", "*"),
    "configmaps": ("", "configmaps", "*"),
    "services": ("", "services", "*"),
    "claims": ("", "persistentvolumeclaims", "*"),
    "statuses": (labels.GROUP, f"{labels.PLURAL}/status", "UPDATE"),
    "runs": (labels.GROUP, labels.PLURAL, "UPDATE"),
    "deletions of Jobs": ("batch", "jobs", "DELETE"),
    "deletions of Deployments": ("apps", "deployments", "DELETE"),
    "events": ("", "events", "CREATE"),
}


def _rule(name: str) -> Object:
    group, resource, operation = _DENIABLE[name]
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}


async def _policy(world: ApiWorld, draw: random.Random) -> Hit:
    what = draw.choice(list(_DENIABLE))
    name = "chaos-denies"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    policy = kind | {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [_rule(what)]},
            "validations": [{"expression": "request.userInfo.username == 'tests'", "message": "chaos"}],
        },
    }
    binding = kind | {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    async with _present(world, "", policy, binding):
        seconds = await pause(draw, 4, 20)
    return Hit(f"{what} denied for {seconds:.1f} s")


async def _webhook(world: ApiWorld, draw: random.Random) -> Hit:
    what = draw.choice(list(_DENIABLE))
    hook = {
        "name": "chaos.gymtrain.dev",
        "clientConfig": {"url": "https://127.0.0.1:1/nobody"},
        "rules": [_rule(what)],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "matchConditions": [{"name": "others", "expression": "request.userInfo.username != 'tests'"}],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "chaos"},
        "webhooks": [hook],
    }
    async with _present(world, f"{_ADMISSION}/validatingwebhookconfigurations", configuration):
        seconds = await pause(draw, 3, 15)
    return Hit(f"nobody answers for {what}, for {seconds:.1f} s")


# ── pods and nodes ───────────────────────────────────────────────────────────────────────────────


async def _container_killed(
    world: ApiWorld, draw: random.Random, *, roles: Sequence[str], code: int, reason: str
) -> Hit:
    pod, story = await running_pod(world, draw, *roles)
    if not await world.node.do(world.node.kill(pod["metadata"]["uid"], code, reason)):
        raise NothingToHit
    return Hit(f"{said(pod)}: {code} {reason}", ((story, ends_of(pod)),))


async def _trainer_disrupted(world: ApiWorld, draw: random.Random) -> Hit:
    pod, story = await running_pod(world, draw, "trainer")
    status: Object = {"reason": draw.choice(("Preempting", "NodeShutdown", "Terminated")), "conditions": _DISRUPTED}
    if not await world.node.do(world.node.kill(pod["metadata"]["uid"], 143, "Error", status)):
        raise NothingToHit
    return Hit(f"{said(pod)}: {status['reason']}", ((story, None),))


async def _on(world: ApiWorld, node: str) -> list[Object]:
    return [pod for pod in await world.owned("pods") if pod["spec"].get("nodeName") == node]


async def _give_up(world: ApiWorld, pod: Object, options: Object) -> None:
    """Deletes a pod as controllers of the cluster do: they say that it isn't the pod's own doing."""
    path = world.path("pods", pod)
    if pod["status"].get("phase") in ("Pending", "Running"):
        status: Object = {"conditions": _DISRUPTED} | ({"phase": "Failed"} if options else {})
        await world.rest.ask("PATCH", f"{path}/status", {"status": status})
    await world.rest.ask("DELETE", path, options | {"preconditions": {"uid": pod["metadata"]["uid"]}})


async def _node_cut_off(world: ApiWorld, draw: random.Random) -> Hit:
    """The control plane gives the node up and deletes its pods, which run on there until the node hears of it."""
    node = draw.choice(NODES)
    await world.node.do(world.node.cut(node))
    try:
        pods = await _on(world, node)
        for pod in pods:
            await _give_up(world, pod, {})
        seconds = await pause(draw, 3, 25)
    finally:
        await world.node.do(world.node.heal(node))
    return Hit(f"{node} with {len(pods)} pods for {seconds:.1f} s")


async def _node_off(world: ApiWorld, draw: random.Random) -> Hit:
    """A machine stops. It comes back, or its node is deleted, and its pods with it."""
    node = draw.choice(NODES)
    pods = await _on(world, node)
    stories = [(world.story_of(pod), ends_of(pod)) for pod in pods]
    for story, ends in stories:
        if story is not None and ends is not None:
            story.hits[ends] += 1  # before it shows
    await world.node.do(world.node.switch_off(node))
    try:
        seconds = await pause(draw, 2, 15)
        deleted = draw.random() < 0.6
        if deleted:
            await world.rest.done("DELETE", f"/api/v1/nodes/{node}", but=(404,))
            for pod in await _on(world, node):
                await _give_up(world, pod, {"gracePeriodSeconds": 0})
            seconds += await pause(draw, 1, 8)
    finally:
        await world.node.do(world.node.heal(node))
    how = ", and its object deleted" if deleted else ""
    return Hit(f"{node} with {len(pods)} pods for {seconds:.1f} s{how}")


async def _no_image(world: ApiWorld, draw: random.Random) -> Hit:
    world.node.pulls_fail = True
    try:
        seconds = await pause(draw, 3, 20)
    finally:
        world.node.pulls_fail = False
    return Hit(f"for {seconds:.1f} s")


async def _mute(world: ApiWorld, draw: random.Random) -> Hit:
    moods: tuple[Mood, ...] = ("error", "hang", "garbage")
    world.node.mood = draw.choice(moods)
    mood = world.node.mood
    try:
        seconds = await pause(draw, 3, 20)
    finally:
        world.node.mood = ""
    return Hit(f"{mood} for {seconds:.1f} s")


async def _namespace_deleted(world: ApiWorld, draw: random.Random) -> Hit:
    namespace = draw.choice(NAMESPACES)
    lost = [story for story in world.stories if story.life.namespace == namespace and not story.over]
    for story in lost:
        story.by_hand = True
    await world.rest.done("DELETE", f"/api/v1/namespaces/{namespace}", but=(404, 409))
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    for _ in range(600):
        status, _ = await world.rest.ask("POST", "/api/v1/namespaces", named)
        if status < 300:
            return Hit(f"{namespace} with {len(lost)} runs")
        for story in world.stories:  # some were applied meanwhile, or just before and are heard of only now
            story.by_hand = story.by_hand or story.life.namespace == namespace
        await asyncio.sleep(0.5)
    world.wrong.append(f"namespace {namespace} isn't gone after 5 minutes")
    return Hit(namespace)


def _faults() -> list[Fault[ApiWorld]]:
    made: list[Fault[ApiWorld]] = [
        Fault(
            "operator killed",
            partial(_operator_ends, how=signal.SIGKILL),
            part="operator",
            weight=3,
            renews_operator=True,
        ),
        Fault("operator restarted", partial(_operator_ends, how=signal.SIGTERM), part="operator", renews_operator=True),
        Fault("operator stopped", _operator_stopped, part="operator"),
        Fault("API server stopped", partial(_program_stopped, name="kube-apiserver", most=15), part="server"),
        Fault("API server killed", partial(_program_killed, name="kube-apiserver"), part="server"),
        Fault("etcd stopped", partial(_program_stopped, name="etcd", most=8), part="server", weight=1),
        Fault("controllers killed", partial(_program_killed, name="kube-controller-manager"), part="controllers"),
        Fault("network cut", _network_cut, part="network", weight=3),
        Fault("connections reset", _connections_reset, part="network", weight=3),
        Fault("rights taken", _rights_taken, part="rights"),
        Fault("quota", _quota, part="quota", weight=3),
        Fault("policy denies", _policy, part="admission", weight=4),
        Fault("webhook away", _webhook, part="admission", weight=3),
        Fault(
            "server OOMKilled",
            partial(_container_killed, roles=SERVERS, code=137, reason="OOMKilled"),
            weight=4,
        ),
        Fault(
            "trainer OOMKilled",
            partial(_container_killed, roles=("trainer",), code=137, reason="OOMKilled"),
            weight=3,
        ),
        Fault(
            "trainer failed",
            partial(_container_killed, roles=("trainer",), code=1, reason="Error"),
            weight=3,
        ),
        Fault(
            "preflight OOMKilled",
            partial(_container_killed, roles=("preflight",), code=137, reason="OOMKilled"),
            weight=2,
        ),
        Fault("trainer disrupted", _trainer_disrupted, weight=3),
        Fault("node cut off", _node_cut_off, part="nodes", weight=2),
        Fault("node off", _node_off, part="nodes", weight=2),
        Fault("no image", _no_image, part="images"),
        Fault("pods misbehave", _mute, part="mood", weight=3),
        Fault("namespace deleted", _namespace_deleted, part="namespaces", weight=1),
    ]
    troubles: tuple[Trouble, ...] = ("429", "500", "503", "409", "slow", "lost", "torn", "expired")
    made += [Fault(f"API {t}", partial(_trouble, trouble=t), part="proxy", weight=2) for t in troubles]
    return [*made, *BY_HAND]


FAULTS = _faults()
"""All kinds of faults of this half."""
