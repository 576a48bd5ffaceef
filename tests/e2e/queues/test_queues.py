"""A queue of Kueue on the real cluster, with Kueue's own controller and webhooks, while runs train.

Part of `make test-queues`. No other test may run beside it: it takes the operator away, and Kueue sees all Jobs.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from gymtrain_api import kueue as names
from gymtrain_api import labels
from tests.support.apiserver import Programs
from tests.support.faults import MINUTES, step, trainer_events, wait_for_steps
from tests.support.go_controller import admin_of, need
from tests.support.helm import Helm
from tests.support.kubectl import Kubectl, eventually
from tests.support.kueue import FLAVOR, install_kinds, local_queue, make_queues, remove, start_controller
from tests.support.runs import tiny_run

pytestmark = [pytest.mark.queues, pytest.mark.timeout(40 * MINUTES)]

_QUEUE = "team"


@pytest.fixture
def kueue(kubeconfig: str, tmp_path: Path) -> Iterator[Programs]:
    """Kueue beside the cluster, whose node is of its flavor."""
    need("kueue", "Kueue")
    with Programs(tmp_path, Path(kubeconfig).absolute()) as cluster:
        try:
            install_kinds(cluster)
            start_controller(cluster, tmp_path)
            admin_of(cluster).run("label", "nodes", "--all", f"pool={FLAVOR}", "--overwrite")
            yield cluster
        finally:
            remove(cluster)
            admin_of(cluster).run("label", "nodes", "--all", "pool-")


def _queued(name: str, priority: str, **config: Any) -> dict[str, Any]:
    run = tiny_run(name, **config)
    run["metadata"]["labels"] = {names.QUEUE_LABEL: _QUEUE, names.PRIORITY_LABEL: priority}
    return run


def _cpus(kubectl: Kubectl, run: str) -> Decimal:
    """What the run's Workload asks for."""
    own = ("workloads.kueue.x-k8s.io", f"{labels.RUN}={run}")
    (workload,) = eventually(lambda: kubectl.list(*own), "it has a Workload", 3 * MINUTES)
    total = Decimal(0)
    for one in workload["spec"]["podSets"]:
        for container in one["template"]["spec"]["containers"]:
            cpus: Decimal = parse_quantity(container["resources"]["requests"]["cpu"])  # type: ignore[no-untyped-call]
            total += one["count"] * cpus
    return total


def _state(kubectl: Kubectl, run: str) -> str:
    return str(kubectl.get("gtr", run)["status"]["state"])


def _roles(kubectl: Kubectl, run: str) -> set[str]:
    return {pod["metadata"]["labels"][labels.ROLE] for pod in kubectl.pods(run)} - {"preflight"}


def test_a_run_gives_way_to_a_more_urgent_one_with_a_checkpoint_and_goes_on_from_it(
    main_release: Helm, kueue: Programs, kubectl: Kubectl
) -> None:
    main_release.upgrade("gymtrain", "kueue.enabled=true")
    make_queues(kueue, "0")
    kubectl.apply(
        local_queue(_QUEUE, kubectl.namespace), _queued("patient", "ordinary", max_steps=300, save_steps=1000)
    )
    wanted = _cpus(kubectl, "patient")
    assert not _roles(kubectl, "patient"), "it waits without a pod"
    make_queues(kueue, f"{wanted * 3 / 2:.3f}")  # room for one
    wait_for_steps(kubectl, "patient", 3, "it was admitted", 6 * MINUTES)
    (trainer,) = kubectl.pods("patient", role="trainer")
    assert trainer["spec"]["nodeSelector"]["pool"] == FLAVOR

    kubectl.apply(_queued("urgent", "urgent", max_steps=2))
    eventually(lambda: _state(kubectl, "patient") == "Queued", "it gives way", 3 * MINUTES)
    reached = step(kubectl, "patient")
    assert 3 <= reached < 300
    kubectl.wait_condition("urgent", "Complete", 8 * MINUTES)
    kubectl.wait_condition("patient", "Complete", 15 * MINUTES)

    assert kubectl.get("gtr", "patient")["status"]["attempt"] == 1, "giving way is no failure"
    (trainer,) = kubectl.pods("patient", role="trainer")
    log = kubectl.logs(trainer["metadata"]["name"], "trainer")
    resumed = re.search(r"resuming from \S+/checkpoint-(\d+)", log)
    assert resumed, "there was no checkpoint on the way out"
    last = int(resumed[1])
    assert last >= reached
    assert [line["step"] for line in trainer_events(kubectl, "patient", "step")] == list(range(last + 1, 301))
