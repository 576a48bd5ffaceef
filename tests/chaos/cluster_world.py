"""The world of the half with real pods: the development cluster of this machine, and a few tiny runs at a time."""

import asyncio
import json
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx

from dev.settings import Settings
from tests.chaos.memory import sample
from tests.chaos.population import Population
from tests.chaos.story import Life, Story
from tests.support.apiserver import binary
from tests.support.chaos import add_chaos
from tests.support.faults import CHECKED, checked_run, trainer_events
from tests.support.install import OPERATOR_NAMESPACE
from tests.support.kubectl import Kubectl
from tests.support.node import processes_of, require_own_node
from tests.support.rest import Rest
from tests.support.runs import make_swe_tasks, swe_run

type Object = dict[str, Any]

NAMESPACES = ("chaos-one", "chaos-two")
UNANSWERED = (AssertionError, subprocess.TimeoutExpired, httpx.TransportError)
"""What a command ends in while the cluster is being broken."""

_ATTEMPTS = 30  # more than faults may cost one run
_SAMPLE_SECONDS = 10.0
_FRAGILE_SERVER = "reasoning_gym"


@dataclass
class Checks:
    """What the trainers found out about their own samples."""

    samples: int = 0
    wrong: int = 0
    runs: int = 0


class ClusterWorld(Population):
    """What faults break and runs live in; `cluster_world` makes it."""

    def __init__(self, rest: Rest, settings: Settings, seed: int) -> None:
        super().__init__(rest, NAMESPACES, lambda number: _drawn(seed, number))
        self.settings = settings
        self.checks = Checks()

    def kubectl(self, namespace: str) -> Kubectl:
        """kubectl in a namespace."""
        return Kubectl(str(self.settings.kubeconfig), namespace, binary("kubectl"))

    async def look_back(self, story: Story) -> None:
        """No sample was of other weights than it claims, as far as logs are left."""
        await asyncio.to_thread(self._check_samples, story)

    def _check_samples(self, story: Story) -> None:
        kubectl, name = self.kubectl(story.life.namespace), story.life.name
        try:
            checks, steps = (trainer_events(kubectl, name, kind) for kind in ("sample_check", "step"))
        except UNANSWERED:
            return  # its pods are gone, or the cluster is being broken just now
        self.checks.runs += 1
        self.checks.samples += sum(check["samples"] for check in checks)
        wrong = [check for check in checks if check["wrong"]]
        self.checks.wrong += len(wrong)
        if wrong:
            story.wrong.append(f"samples of other weights than they claim: {wrong}")
        foreign = [line for line in steps if not all(v.startswith(f"{name}:") for v in line["weight_versions"])]
        if foreign:
            story.wrong.append(f"weights of another run: {foreign[0]}")

    async def watch_the_operator(self) -> None:
        """Takes samples of the memory of the process that is the operator just now."""
        while True:
            path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods"
            for pod in await self.rest.items(path, "app.kubernetes.io/name=gymtrain"):
                pids = await asyncio.to_thread(processes_of, pod["metadata"]["uid"])
                found = sample(min(pids)) if pids and "deletionTimestamp" not in pod["metadata"] else None
                self.samples += [found] if found else []
            await asyncio.sleep(_SAMPLE_SECONDS)


def _drawn(seed: int, number: int) -> Life:
    """The life of the run of that number; the same for the same seed."""
    draw = random.Random(f"{seed}/cluster-run/{number}")
    with_sandboxes = number % 3 == 0
    name = f"r{number}"
    if with_sandboxes:
        run = swe_run(name)
        run["spec"]["trainer"]["template"] = {"spec": {"containers": [{"name": "trainer", "env": [CHECKED]}]}}
    else:
        run = checked_run(name, max_steps=draw.choice((150, 250, 400)), save_steps=7)
        run["spec"]["rollout"] |= {"timeoutSeconds": 15, "maxAttempts": 2}
        add_chaos(run, _FRAGILE_SERVER)
    run["spec"]["backoffLimit"] = _ATTEMPTS
    suspends = draw.random() < 0.2
    return Life(
        name=name,
        namespace=NAMESPACES[number % len(NAMESPACES)],
        kind="sandboxes" if with_sandboxes else "good",
        backoff_limit=_ATTEMPTS,
        suspend_after=draw.uniform(30, 120) if suspends else None,
        resume_after=draw.uniform(2, 30),
        delete_after=draw.uniform(5, 180) if draw.random() < 0.15 else None,
        linger=6.0,
        ttl=None,
        keeps_volume=False,
        again=draw.random() < 0.1,
        manifest=run,
    )


@asynccontextmanager
async def cluster_world(seed: int) -> AsyncIterator[ClusterWorld]:
    """The world, up to the end of the block. KUBECONFIG names the development cluster, with operator and images."""
    settings = require_own_node(str(Settings().kubeconfig))
    async with Rest.of_kubeconfig() as rest:
        world = ClusterWorld(rest, settings, seed)
        for namespace in NAMESPACES:
            await asyncio.to_thread(_prepare, world.kubectl(namespace))
        yield world
        for namespace in NAMESPACES:
            await rest.done("DELETE", f"/api/v1/namespaces/{namespace}", but=(404, 409))


def _prepare(kubectl: Kubectl) -> None:
    """A namespace under restricted Pod Security, with what the runs name."""
    kubectl.run("delete", "namespace", kubectl.namespace, "--ignore-not-found", timeout=300)
    kubectl.run("create", "namespace", kubectl.namespace)
    kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    make_swe_tasks(kubectl)
    fragile = add_chaos(checked_run("any"), _FRAGILE_SERVER)
    kubectl.run("create", "-f", "-", stdin=json.dumps(fragile))
