"""What is read of Kueue: the Workload, flavors, priorities, and what keeps a run from its queue."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gymtrain_api import kueue, labels
from gymtrain_api.conditions import ConditionType
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_api.transports import ServerOffer
from gymtrain_kube.errors import NotFoundError, RejectedError
from gymtrain_operator import kinds, watching
from gymtrain_operator import observe as observing
from gymtrain_operator.apply import RejectionBackoff, carry_out
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.manifests.workload import Priority
from gymtrain_operator.observe import Observer, read_run
from gymtrain_operator.queueing import QueueObserver, may_be_queued
from gymtrain_operator.reconcile.changes import Update
from gymtrain_operator.reconcile.observation import Children, Observation, Run
from gymtrain_operator.reconcile.plan import Plan
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.trimming import trimmed
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.kueue_world import FLAVOR, admit, evict, queued, workload
from tests.support.world import OFFER, UID, spec

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
    return Run("run", "ns", "uid", 1, typed, status, queue=queue, names_queue=True, priority_class=priority)


def _of_cluster(cluster: FakeKubeClient, kind: kinds.Kind, name: str, **fields: object) -> None:
    cluster.put(kind, {"kind": kind.name, "metadata": {"name": name, "namespace": ""}, **fields})


def test_a_runs_labels_name_queue_and_priority() -> None:
    own = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    meta = {"name": "run", "namespace": "ns", "uid": "u", "labels": own}
    run = read_run({"kind": labels.KIND, "metadata": meta, "spec": spec()})
    assert (run.queue, run.priority_class) == ("team", "high")


def test_workloads_of_runs_alone_are_watched() -> None:
    own = (kueue.GROUP, kueue.VERSION, kueue.WORKLOADS)
    assert "gymtrain.dev/run" in str(watching.settings().watching.label_selectors[own])


async def test_a_run_without_the_label_asks_nothing(cluster: FakeKubeClient) -> None:
    assert not may_be_queued(_run(queue=""))
    assert await QueueObserver(cluster, Defaults()).missing(_run(queue="")) == []
    assert cluster.reads == 0


async def test_an_operator_without_the_right_says_what_to_set(cluster: FakeKubeClient) -> None:
    (missing,) = await QueueObserver(cluster, Defaults()).missing(_run())
    assert missing.startswith("label kueue.x-k8s.io/queue-name: ")
    assert "kueue.enabled" in missing


async def test_a_queue_that_defaults_name_is_called_so(cluster: FakeKubeClient) -> None:
    (missing,) = await QueueObserver(cluster, Defaults()).missing(replace(_run(), names_queue=False))
    assert missing.startswith("status.defaults.queueName: ")


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


# ── in an observation ────────────────────────────────────────────────────────────────────────────


def _stored(cluster: FakeKubeClient, status: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    own = {"kueue.x-k8s.io/queue-name": "team"}
    meta = {"name": "run", "namespace": "ns", "uid": UID, "generation": 1, "labels": own}
    return cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": meta, "spec": spec(**blocks), "status": status})


def _admitted_condition(status: str) -> dict[str, Any]:
    stated = {"type": "Admitted", "status": status, "reason": "Evicted", "lastTransitionTime": "2027-01-15T08:00:00Z"}
    return {"conditions": [stated]}


def _put_pod(cluster: FakeKubeClient, name: str, role: labels.Role, status: dict[str, Any]) -> None:
    owner = {"kind": labels.KIND, "name": "run", "uid": UID, "controller": True}
    meta = {"name": name, "namespace": "ns", "labels": labels.run_labels("run", role), "ownerReferences": [owner]}
    cluster.put(kinds.POD, {"kind": "Pod", "metadata": meta, "status": status})


@pytest.fixture
async def observer(cluster: FakeKubeClient) -> AsyncIterator[Observer]:
    async with aiohttp.ClientSession() as session:
        yield Observer(cluster, session, WITH_KUEUE)


def _namespace_has(cluster: FakeKubeClient, **defaults: Any) -> None:
    meta = {"name": "default", "namespace": "ns"}
    cluster.put(kinds.DEFAULTS, {"kind": labels.DEFAULTS_KIND, "metadata": meta, "spec": defaults})


def _labelled(found: dict[str, Any], **own: str) -> dict[str, Any]:
    found["metadata"]["labels"] = {f"kueue.x-k8s.io/{name.replace('_', '-')}": value for name, value in own.items()}
    return found


@pytest.mark.parametrize(
    ("own", "queue"), [({}, "nightly"), ({"queue_name": "team"}, "team"), ({"queue_name": ""}, "")]
)
async def test_a_run_waits_in_its_namespaces_queue_where_it_names_none(
    cluster: FakeKubeClient, observer: Observer, own: dict[str, str], queue: str
) -> None:
    _namespace_has(cluster, queueName="nightly")
    seen = await observer.observe(_labelled(_stored(cluster, {}), **own), 0.0, resync=False)
    assert (seen.run.queue, seen.run.names_queue) == (queue, bool(own))


async def test_a_run_under_way_keeps_the_queue_that_it_began_with(cluster: FakeKubeClient, observer: Observer) -> None:
    passed = {"type": "PreflightPassed", "status": "True", "reason": "x", "lastTransitionTime": "2027-01-15T08:00:00Z"}
    _namespace_has(cluster, queueName="nightly")
    for defaults, queue in (({"queueName": "team"}, "team"), (None, "")):
        status = {"conditions": [passed], **({"defaults": defaults} if defaults else {})}
        seen = await observer.observe(_labelled(_stored(cluster, status)), 0.0, resync=False)
        assert seen.run.queue == queue


async def test_sandboxes_of_an_evicted_run_are_looked_for(cluster: FakeKubeClient, observer: Observer) -> None:
    found = _stored(cluster, _admitted_condition("False"), sandboxes={"backend": "Pod"})
    _put_pod(cluster, "run-sb-1", labels.Role.SANDBOX, {"phase": "Running"})
    cluster.objects["Pod", "ns", "run-sb-1"]["metadata"]["labels"][labels.MANAGED_BY] = labels.BROKER_VALUE
    seen = await observer.observe(found, 0.0, resync=False)
    assert len(seen.children.pods(labels.Role.SANDBOX)) == 1


async def test_as_many_servers_as_were_admitted_are_asked_for_their_offers(
    cluster: FakeKubeClient, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def offer(*_: Any) -> ServerOffer:
        return OFFER

    monkeypatch.setattr(observing, "server_offer", offer)
    _of_cluster(cluster, kinds.RESOURCE_FLAVOR, "h100", spec=FLAVOR)
    blocks = {"inference": {"replicas": 4, "minReplicas": 2}}
    made = workload(admit(queued(**blocks), {"inference": 2}))
    cluster.put(kinds.WORKLOAD, made)
    found = _stored(cluster, _admitted_condition("True"), **blocks)
    started = [{"name": "inference", "started": True, "ready": False, "restartCount": 0, "state": {"running": {}}}]
    for number in (1, 2):
        status = {"phase": "Running", "podIP": f"10.0.0.{number}", "containerStatuses": started}
        _put_pod(cluster, f"run-inference-{number}", labels.Role.INFERENCE, status)
    seen = await observer.observe(found, 0.0, resync=False)
    assert seen.offers == (OFFER, OFFER)


async def test_after_a_change_of_its_workload_a_run_is_looked_at_anew(
    cluster: FakeKubeClient, observer: Observer
) -> None:
    _of_cluster(cluster, kinds.RESOURCE_FLAVOR, "h100", spec=FLAVOR)
    world = admit(queued())
    world.reconcile(5)
    evict(world)
    for manifest in (*world.objects["ConfigMap"].values(), workload(world)):
        cluster.put(kinds.BY_NAME[manifest["kind"]], manifest)
    document = world.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    _stored(cluster, document)
    reconciler = Reconciler(cluster, observer, WITH_KUEUE, lambda: world.now)
    await reconciler.reconcile(("ns", "run"))
    assert "PATCH Workload/gymtrainingrun-run" in cluster.calls
    cluster.calls.clear()
    await reconciler.reconcile(("ns", "run"))  # the Workload as it is now needs no change
    assert [call for call in cluster.calls if "Workload" in call] == []
