"""What somebody does by hand to runs and to what they own, and what happens to single pods: faults of both halves."""

import asyncio
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from gymtrain_api import labels
from tests.chaos.fault import Fault, Hit, NothingToHit
from tests.chaos.population import Population, chosen
from tests.chaos.story import Ends, Story

type Object = dict[str, Any]

SERVERS = ("gym", "gateway", "inference", "broker")


async def pause(draw: random.Random, least: float, most: float) -> float:
    """Waits for some seconds, and returns how many."""
    seconds = draw.uniform(least, most)
    await asyncio.sleep(seconds)
    return seconds


async def running_pod(world: Population, draw: random.Random, *roles: str) -> tuple[Object, Story]:
    """A pod that runs, of one of these roles, of a run that goes on."""
    found = []
    for pod in await world.owned("pods", selector=f"{labels.ROLE}%20in%20({','.join(roles)})"):
        story = world.story_of(pod)
        running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        if story is not None and story in world.alive() and running:
            found.append((pod["metadata"]["name"], pod, story))
    if not found:
        raise NothingToHit
    _, pod, story = draw.choice(sorted(found, key=lambda one: one[0]))
    return pod, story


def said(pod: Object) -> str:
    """Namespace and name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def ends_of(pod: Object) -> Ends | None:
    """What the pod's own failure may cost its run."""
    ends: dict[str, Ends] = {"trainer": "attempt", "preflight": "preflight"}
    return ends.get(pod["metadata"]["labels"].get(labels.ROLE))


async def _pod_deleted(world: Population, draw: random.Random, *, roles: Sequence[str]) -> Hit:
    pod, story = await running_pod(world, draw, *roles)
    forced = draw.random() < 0.5
    options = {"gracePeriodSeconds": 0} if forced else {}
    await world.rest.done("DELETE", world.path("pods", pod), options, but=(404,))
    return Hit(f"{said(pod)}{', forced' if forced else ''}", ((story, ends_of(pod)),))


async def _pod_evicted(world: Population, draw: random.Random) -> Hit:
    pod, story = await running_pod(world, draw, *SERVERS, "trainer", "preflight")
    name = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": name}
    status, _ = await world.rest.ask("POST", f"{world.path('pods', pod)}/eviction", eviction)
    return Hit(f"{said(pod)}: HTTP {status}", ((story, None),))


async def _object(world: Population, draw: random.Random, kind: str) -> tuple[Object, Story]:
    found = []
    for item in await world.owned(kind):
        story = world.story_of(item)
        if story is not None and story in world.alive() and "deletionTimestamp" not in item["metadata"]:
            found.append((item["metadata"]["name"], item, story))
    if not found:
        raise NothingToHit
    _, item, story = draw.choice(sorted(found, key=lambda one: one[0]))
    return item, story


async def _object_deleted(world: Population, draw: random.Random, *, kinds: Sequence[str]) -> Hit:
    kind = draw.choice(kinds)
    item, story = await _object(world, draw, kind)
    policy = draw.choice(("Background", "Foreground"))
    await world.rest.done("DELETE", world.path(kind, item), {"propagationPolicy": policy}, but=(404,))
    return Hit(f"{kind} {said(item)}, {policy}", ((story, None),))


_EDITS: dict[str, Sequence[Object]] = {
    "deployments": (
        {"spec": {"replicas": 0}},
        {"spec": {"replicas": 3}},
        {"spec": {"paused": True}},
        {"spec": {"template": {"metadata": {"annotations": {"by-hand": "yes"}}}}},
        {"metadata": {"annotations": {labels.CONFIG_HASH: None}}},
        {"metadata": {"annotations": {labels.CONFIG_HASH: "other"}}},
    ),
    "services": ({"spec": {"selector": {"by-hand": "yes"}}}, {"metadata": {"annotations": None}}),
    "networkpolicies": ({"spec": {"ingress": None}}, {"spec": {"podSelector": {"matchLabels": {"by-hand": "yes"}}}}),
    "configmaps": ({"data": None}, {"data": {"by-hand": "yes"}}, {"metadata": {"annotations": None}}),
    "jobs": ({"metadata": {"annotations": {"by-hand": "yes"}}}, {"spec": {"suspend": True}}),
}


async def _object_edited(world: Population, draw: random.Random) -> Hit:
    kind = draw.choice(list(_EDITS))
    item, story = await _object(world, draw, kind)
    change = draw.choice(_EDITS[kind])
    status, _ = await world.rest.ask("PATCH", world.path(kind, item), change)
    if change == {"spec": {"suspend": True}}:
        await pause(draw, 1, 6)
        await world.rest.ask("PATCH", world.path(kind, item), {"spec": {"suspend": False}})
    return Hit(f"{kind} {said(item)}: {json.dumps(change)}: HTTP {status}", ((story, None),))


async def _labels_taken(world: Population, draw: random.Random) -> Hit:
    kind = draw.choice(("deployments", "services", "configmaps", "networkpolicies", "persistentvolumeclaims"))
    item, story = await _object(world, draw, kind)
    changes = {"metadata": {"labels": {labels.RUN: None}}}
    status, _ = await world.rest.ask("PATCH", world.path(kind, item), changes)
    if kind == "persistentvolumeclaims":  # nobody's any more, which the run rightly waits for
        await pause(draw, 2, 15)
        back = {"metadata": {"labels": {labels.RUN: story.life.name}}}
        await world.rest.ask("PATCH", world.path(kind, item), back)
    return Hit(f"{kind} {said(item)}: HTTP {status}", ((story, None),))


def _a_run(world: Population, draw: random.Random) -> Story:
    story = chosen(world.alive(), draw)
    if story is None:
        raise NothingToHit
    return story


async def _record_taken(world: Population, draw: random.Random) -> Hit:
    story = _a_run(world, draw)
    value = draw.choice((None, "{", "{}", "[]"))
    changes = {"metadata": {"annotations": {labels.RECORD: value}}}
    status, _ = await world.rest.ask("PATCH", world.run_path(story), changes)
    return Hit(f"{story.key} {value}: HTTP {status}", ((story, "record"),))


async def _status_taken(world: Population, draw: random.Random) -> Hit:
    known = [s for s in world.stories if not s.over and not s.by_hand]
    story = chosen(known, draw)
    if story is None:
        raise NothingToHit
    story.hits["status"] += 1  # before it shows
    status, _ = await world.rest.ask("PATCH", f"{world.run_path(story)}/status", {"status": None})
    return Hit(f"{story.key}: HTTP {status}", ((story, None),))


async def _run_touched(world: Population, draw: random.Random) -> Hit:
    story = _a_run(world, draw)
    changes: Object = draw.choice(
        (
            {"spec": {"gateway": {"maxInFlight": draw.randint(10, 500)}}},
            {"spec": {"inference": {"replicas": draw.randint(1, 3)}}},
            {"metadata": {"labels": {"by-hand": str(draw.randint(0, 9))}}},
            {"metadata": {"annotations": {"by-hand": str(draw.randint(0, 9))}}},
            {"spec": {"activeDeadlineSeconds": 86400 + draw.randint(0, 99)}},
        )
    )
    status, _ = await world.rest.ask("PATCH", world.run_path(story), changes)
    return Hit(f"{story.key}: {json.dumps(changes)}: HTTP {status}", ((story, None),))


BY_HAND: list[Fault[Population]] = [
    Fault("server pod deleted", partial(_pod_deleted, roles=SERVERS), weight=4),
    Fault("trainer pod deleted", partial(_pod_deleted, roles=("trainer",)), weight=3),
    Fault("preflight pod deleted", partial(_pod_deleted, roles=("preflight",)), weight=2),
    Fault("pod evicted", _pod_evicted, weight=4),
    Fault(
        "object deleted",
        partial(_object_deleted, kinds=("deployments", "services", "networkpolicies", "configmaps", "replicasets")),
        weight=6,
    ),
    Fault(
        "hidden object deleted",
        partial(_object_deleted, kinds=("poddisruptionbudgets", "persistentvolumeclaims")),
        weight=2,
    ),
    Fault("Job deleted", partial(_object_deleted, kinds=("jobs",)), weight=3),
    Fault("object edited", _object_edited, weight=6),
    Fault("labels taken", _labels_taken, weight=3),
    Fault("record taken", _record_taken, weight=3),
    Fault("status taken", _status_taken, weight=3),
    Fault("run touched", _run_touched, weight=4),
]
"""Faults that need nothing but an API server."""
