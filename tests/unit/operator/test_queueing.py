"""What is read of Kueue: the Workload, flavors, priorities, and what keeps a run from its queue."""

import pytest

from gymtrain_api import kueue, labels
from gymtrain_api.conditions import ConditionType
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_kube.errors import NotFoundError, RejectedError
from gymtrain_operator import kinds, watching
from gymtrain_operator.apply import RejectionBackoff, carry_out
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.manifests.workload import Priority
from gymtrain_operator.observe import read_run
from gymtrain_operator.queueing import QueueObserver, may_be_queued
from gymtrain_operator.reconcile.changes import Update
from gymtrain_operator.reconcile.observation import Children, Observation, Run
from gymtrain_operator.reconcile.plan import Plan
from gymtrain_operator.trimming import trimmed
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.kueue_world import FLAVOR, admit, queued, workload
from tests.support.world import spec

WITH_KUEUE = Defaults(kueue=True)


@pytest.fixture
def cluster() -> FakeKubeClient:
    made = FakeKubeClient()
    made.serves_kueue = True
    return made


def _run(queue: str = "team", priority: str = "", admitted: str = "", **blocks: object) -> Run:
    conditions = [
        Condition(type=kind, status="True", reason="x", last_transition_time="2027-01-15T08:00:00Z")
        for kind in ([admitted] if admitted else [])
    ]
    typed = GymTrainingRunSpec.model_validate(spec(**blocks))
    status = GymTrainingRunStatus(conditions=conditions)
    return Run("run", "ns", "uid", 1, typed, status, queue=queue, priority_class=priority)


def _of_cluster(cluster: FakeKubeClient, kind: kinds.Kind, name: str, **fields: object) -> None:
    cluster.put(kind, {"kind": kind.name, "metadata": {"name": name, "namespace": ""}, **fields})


def test_a_runs_labels_name_queue_and_priority() -> None:
    own = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    meta = {"name": "run", "namespace": "ns", "uid": "u", "labels": own}
    run = read_run({"kind": labels.KIND, "metadata": meta, "spec": spec()})
    assert (run.queue, run.priority_class) == ("team", "high")


def test_workloads_are_watched_where_the_operator_may() -> None:
    own = (kueue.GROUP, kueue.VERSION, kueue.WORKLOADS)
    assert own in watching.watched(with_kueue=True)
    assert own not in watching.watched(with_kueue=False)
    assert "gymtrain.dev/run" in str(watching.settings().watching.label_selectors[own])


async def test_a_run_without_the_label_asks_nothing(cluster: FakeKubeClient) -> None:
    assert not may_be_queued(_run(queue=""))
    assert await QueueObserver(cluster, Defaults()).missing(_run(queue="")) == []
    assert cluster.reads == 0


async def test_an_operator_without_the_right_says_what_to_set(cluster: FakeKubeClient) -> None:
    (missing,) = await QueueObserver(cluster, Defaults()).missing(_run())
    assert missing.startswith("label kueue.x-k8s.io/queue-name: ")
    assert "kueue.enabled" in missing


async def test_a_cluster_without_kueue_says_what_to_install(cluster: FakeKubeClient) -> None:
    cluster.serves_kueue = False
    (missing,) = await QueueObserver(cluster, WITH_KUEUE).missing(_run())
    assert "does not serve Workload of kueue.x-k8s.io/v1beta2: install Kueue" in missing


async def test_a_priority_class_that_is_missing_is_named(cluster: FakeKubeClient) -> None:
    (missing,) = await QueueObserver(cluster, WITH_KUEUE).missing(_run(priority="high"))
    assert missing == "label kueue.x-k8s.io/priority-class: WorkloadPriorityClass high not found"


async def test_the_label_decides_the_priority(cluster: FakeKubeClient) -> None:
    _of_cluster(cluster, kinds.WORKLOAD_PRIORITY_CLASS, "high", value=7)
    found = await QueueObserver(cluster, WITH_KUEUE).priority(_run(priority="high", priorityClassName="pods"))
    assert found == Priority("WorkloadPriorityClass", "high", 7)


async def test_otherwise_the_pods_priority_counts(cluster: FakeKubeClient) -> None:
    _of_cluster(cluster, kinds.PRIORITY_CLASS, "pods", value=5)
    observer = QueueObserver(cluster, WITH_KUEUE)
    assert await observer.priority(_run(priorityClassName="pods")) == Priority("PriorityClass", "pods", 5)
    assert await observer.priority(_run()) is None


async def test_flavors_are_read_once_in_a_while(cluster: FakeKubeClient) -> None:
    _of_cluster(cluster, kinds.RESOURCE_FLAVOR, "h100", spec=FLAVOR)
    world = admit(queued())
    children = Children({"Workload": {"gymtrainingrun-run": trimmed(kinds.WORKLOAD, workload(world))}})
    observer = QueueObserver(cluster, WITH_KUEUE)
    assert await observer.flavors(_run(), children) == {"h100": FLAVOR}
    assert await observer.flavors(_run(), children) == {"h100": FLAVOR}
    assert cluster.reads == 1


async def test_a_flavor_that_is_gone_lets_no_pod_be_made_without_it(cluster: FakeKubeClient) -> None:
    world = admit(queued())
    children = Children({"Workload": {"gymtrainingrun-run": trimmed(kinds.WORKLOAD, workload(world))}})
    with pytest.raises(NotFoundError):
        await QueueObserver(cluster, WITH_KUEUE).flavors(_run(), children)


@pytest.mark.parametrize("error", [NotFoundError("gone"), RejectedError("forbidden", final=False)])
async def test_an_admitted_run_is_not_stopped_because_its_workload_cannot_be_read(
    cluster: FakeKubeClient, error: Exception
) -> None:
    cluster.fail["LIST Workload"] = error
    observer = QueueObserver(cluster, WITH_KUEUE)
    assert await observer.workloads(_run()) == []
    with pytest.raises(type(error)):
        await observer.workloads(_run(admitted=ConditionType.ADMITTED))


async def test_the_change_of_a_workload_is_refused_if_kueue_was_faster(cluster: FakeKubeClient) -> None:
    live = cluster.put(kinds.WORKLOAD, {"kind": "Workload", "metadata": {"name": "w", "namespace": "ns"}, "status": {}})
    seen = Observation(run=_run(), now=0.0)
    update = Update(live, {"status": {"conditions": []}}, "status")
    done = Plan(GymTrainingRunStatus(), updates=(update,))
    assert await carry_out(cluster, seen, done, RejectionBackoff()) == ()
    assert cluster.objects["Workload", "ns", "w"]["status"] == {"conditions": []}
    with pytest.raises(Exception, match="changed"):
        await carry_out(cluster, seen, done, RejectionBackoff())


async def test_a_workload_that_is_gone_needs_no_change(cluster: FakeKubeClient) -> None:
    live = cluster.put(kinds.WORKLOAD, {"kind": "Workload", "metadata": {"name": "w", "namespace": "ns"}})
    cluster.objects.clear()
    done = Plan(GymTrainingRunStatus(), updates=(Update(live, {"status": {}}, "status"),))
    assert await carry_out(cluster, Observation(run=_run(), now=0.0), done, RejectionBackoff()) == ()
