"""Whatever is killed, and whatever the sandboxes are doing then: a minute after the run's end there is none.

Each test fills a run with sandboxes in all states, kills a part of it, ends the run and counts. That takes minutes a
test, so `make test` runs one case (test_what_is_left.py) and `make test-faults` all.

A node that is gone can't say that its containers are, so the minute begins when it is back.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import node
from tests.support.faults import kill_pod, pod_of, scale
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import NOWHERE, make_swe_tasks, swe_run
from tests.support.sandboxes import AGENT, IMAGE, Sandboxes, running

pytestmark = pytest.mark.faults

PLACES = 5
NO_IMAGE = "127.0.0.1:9/gymtrain/no-such-task:dev"  # nothing listens: it stays Starting
OPERATOR = ("gymtrain-system", "gymtrain-operator")
SECONDS = 60
# Kills the trainer's own process, so that its attempt fails; a deleted pod would be the cluster's doing.
KILL_TRAINER = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid() and b"gymtrain_trainer" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), signal.SIGKILL)
"""

type End = Callable[[], None]


class Run:
    """A run whose broker and agent are up. It ends when a test ends it."""

    def __init__(self, kubectl: Kubectl, *, trains: bool) -> None:
        self.kubectl = kubectl
        make_swe_tasks(kubectl)
        run = swe_run("leak")
        spec = run["spec"]
        spec["inference"]["resources"] = NOWHERE
        if not trains:
            spec["trainer"]["resources"] = NOWHERE
        trainer: dict[str, Any] = {"spec": {"shareProcessNamespace": True}}
        spec["trainer"]["template"] = trainer
        spec["backoffLimit"] = 0
        spec["sandboxes"] |= {"maxConcurrent": PLACES, "lookAhead": {"tasks": 0}}
        spec["sandboxes"]["warmPools"] = [{"image": IMAGE, "replicas": 1}]
        kubectl.apply(run)
        for condition in ("PreflightPassed", "SandboxesReady", "GymReady"):
            kubectl.wait_condition("leak", condition, 360)
        self.boxes = Sandboxes(kubectl, "leak", AGENT)
        self._threads = ThreadPoolExecutor(PLACES + 4)
        self._open: list[Future[Any]] = []

    def fill(self) -> None:
        """Sandboxes Running, Starting, Queued, and one that is being closed; their clients wait meanwhile."""
        running(self.boxes.create(IMAGE, task="running"))
        closing = running(self.boxes.create(IMAGE, task="closing"))
        for number in range(2):
            self._background(self.boxes.create, NO_IMAGE, task=f"starts-{number}")
        # Each client is a process that takes seconds to start: those to come might be there first, and take all places.
        eventually(lambda: "Starting" in self._states(), "one is starting", 120)
        for number in range(PLACES):
            self._background(self.boxes.create, IMAGE, task=f"waits-{number}")
        eventually(lambda: self._states() >= {"Running", "Starting", "Queued"}, "all states are there", 240)
        self._background(self.boxes.close, closing)
        eventually(lambda: self._is_ending(closing), "one is being closed", 60, every=0.1)

    def fail(self) -> None:
        """Ends the run by its deadline: the operator has to sweep."""
        self.kubectl.run("patch", "gtr", "leak", "--type=merge", "-p", '{"spec":{"activeDeadlineSeconds":1}}')

    def delete(self) -> None:
        """Ends the run by its deletion: ownerReferences have to do."""
        self.kubectl.run("delete", "gtr", "leak", timeout=60)

    def failed(self) -> bool:
        """Whether its status says that it has ended."""
        return self.kubectl.condition("leak", "Failed").get("status") == "True"

    def left(self) -> list[str]:
        """Sandbox pods, those on their way out too."""
        return [pod["metadata"]["name"] for pod in self.boxes.pods()]

    def assert_nothing_left(self) -> None:
        """No sandbox within a minute from now, and none that somebody makes thereafter."""
        eventually(lambda: not self.left(), f"no sandbox is left after {SECONDS} s", SECONDS)
        time.sleep(8)
        assert not self.left(), "somebody made another one"

    def hang_up(self) -> None:
        """Waits for the clients in the background, whose calls may well have failed."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_ending(self, box: dict[str, Any]) -> bool:
        """A pod takes two seconds to end."""
        pod = next((one for one in self.boxes.pods() if one["metadata"]["name"] == box["podName"]), None)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    def _states(self) -> set[str]:
        return {box["state"] for box in self.boxes.listed()}

    def _background(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        self._open.append(self._threads.submit(call, *arguments, **more))


@pytest.fixture
def run(operator: Kubectl, kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A filled run."""
    made = Run(kubectl, trains=getattr(request, "param", False))
    made.fill()
    yield made
    made.hang_up()


def test_the_agent_is_killed_and_the_run_fails(run: Run) -> None:
    kill_pod(run.kubectl, "leak", role="gym", server=AGENT)
    run.fail()
    eventually(run.failed, "the run has failed", 60)
    run.assert_nothing_left()


@pytest.mark.parametrize("ends", ["fail", "delete"])
def test_the_broker_is_killed_and_the_run_ends(run: Run, ends: str) -> None:
    kill_pod(run.kubectl, "leak", role="broker")
    getattr(run, ends)()
    if ends == "fail":
        eventually(run.failed, "the run has failed", 60)
    run.assert_nothing_left()


@pytest.mark.parametrize("run", [True], indirect=True, ids=["with a trainer"])
def test_the_trainer_is_killed_and_the_run_fails_of_it(run: Run) -> None:
    pods = eventually(lambda: run.kubectl.pods("leak", role="trainer"), "there is a trainer", 60)
    run.kubectl.run(
        "wait", "--for=condition=Ready", f"pod/{pods[0]['metadata']['name']}", "--timeout=120s", timeout=150
    )
    name = pod_of(run.kubectl, "leak", role="trainer")["metadata"]["name"]
    run.kubectl.run("exec", name, "-c", "trainer", "--", "python", "-S", "-c", KILL_TRAINER, check=False)
    eventually(run.failed, "the run has failed", 120)
    run.assert_nothing_left()


def test_the_operator_is_killed_before_the_run_fails_and_while_it_sweeps(run: Run, operator: Kubectl) -> None:
    kill = ("delete", "pod", "--selector=app.kubernetes.io/component=operator", "--grace-period=0", "--force")
    operator.run(*kill)
    run.fail()
    eventually(run.failed, "the run has failed", 120, every=0.2)
    operator.run(*kill)
    run.assert_nothing_left()


def test_there_is_no_operator_when_the_run_is_deleted(run: Run) -> None:
    scale(run.kubectl, *OPERATOR, replicas=0)
    try:
        run.delete()
        run.assert_nothing_left()
    finally:
        scale(run.kubectl, *OPERATOR, replicas=1)


@pytest.mark.parametrize("ends", ["fail", "delete"])
def test_the_node_is_away_when_the_run_ends(run: Run, kubeconfig: str, ends: str) -> None:
    settings = node.require_own_node(kubeconfig)
    with node.away(settings):
        node.wait_not_ready(settings)
        getattr(run, ends)()
        time.sleep(5)
    if ends == "fail":
        eventually(run.failed, "the run has failed", 60)
    run.assert_nothing_left()
