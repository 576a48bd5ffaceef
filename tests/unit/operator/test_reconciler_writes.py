"""One reconcile: what is read, what is written, and in which order."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from gymtrain_api import labels
from gymtrain_api.wiring import TrainerProgress
from gymtrain_kube.errors import ConflictError, RejectedError, UnreachableError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.observe import Observer
from tests.support.reconciler_bench import KEY, Bench
from tests.support.world import OFFER


async def test_objects_come_before_the_status_and_the_status_before_events(bench: Bench) -> None:
    bench.add_run()
    calls = await bench.reconcile()
    kinds_in_order = [call.split("/")[0] for call in calls]
    assert kinds_in_order == [
        "APPLY ConfigMap",
        "APPLY NetworkPolicy",
        "APPLY NetworkPolicy",
        "APPLY NetworkPolicy",
        "CREATE Pod",
        f"PUT {labels.KIND}",
        "CREATE Event",
    ]


async def test_what_pods_mount_and_their_fence_are_written_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add_run()
    apply, under_way, most = bench.cluster.apply, 0, 0

    async def takes_a_moment(kind: Kind, manifest: Object, *, uid: str = "") -> Object:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await apply(kind, manifest, uid=uid)

    monkeypatch.setattr(bench.cluster, "apply", takes_a_moment)
    calls = await bench.reconcile()
    assert most == 4
    assert [call.split("/")[0] for call in calls][4] == "CREATE Pod", "when they are all there"


async def test_a_role_is_there_before_it_is_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server takes no RoleBinding of a Role that it doesn't know."""
    bench.add_run(sandboxes={})
    create, bound = bench.cluster.create, []

    async def looks_first(kind: Kind, manifest: Object) -> Object:
        if kind is kinds.ROLE_BINDING:
            bound.append(("Role", "ns", manifest["roleRef"]["name"]) in bench.cluster.objects)
        else:
            await asyncio.sleep(0)
        return await create(kind, manifest)

    monkeypatch.setattr(bench.cluster, "create", looks_first)
    await bench.pass_preflight()
    assert bound == [True]


async def test_an_unchanged_status_is_not_written(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    await bench.reconcile()  # the pod is made now, which the status says
    assert await bench.reconcile() == []


async def test_no_event_is_posted_about_a_status_that_was_not_written(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail[f"PUT {labels.KIND}"] = ConflictError("changed")
    with pytest.raises(ConflictError):
        await bench.reconcile()
    assert not [call for call in bench.cluster.calls if "Event" in call]


async def test_a_lost_event_is_no_failure(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Event"] = RejectedError("no right", final=False)
    await bench.reconcile()
    assert bench.run["status"]["state"] == "Preflight"


async def test_what_is_made_is_not_asked_for_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    get = bench.cluster.get

    async def noted(kind: Kind, namespace: str | None, name: str) -> Object:
        asked.add(kind.name)
        return await get(kind, namespace, name)

    monkeypatch.setattr(bench.cluster, "get", noted)
    bench.add_run()
    await bench.pass_preflight()
    assert len([call for call in bench.cluster.calls if call.startswith("APPLY")]) > 10
    assert asked <= {kinds.RUN.name, kinds.DEFAULTS.name}


async def test_while_a_run_trains_only_the_trainer_is_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 1  # that the run has trained is on record before the clock starts

    async def progress(*_: object) -> TrainerProgress:
        return TrainerProgress(phase="training", step=step, weight_version=f"run:1:{step}", updated_at=bench.now)

    async def offers(*_: object) -> tuple[tuple[object, ...], str]:
        return (OFFER,), ""

    monkeypatch.setattr(Observer, "_progress", progress)
    monkeypatch.setattr(Observer, "_offers", offers)
    bench.add_run()
    await bench.pass_preflight()
    bench.reconciler.event(KEY)
    await bench.reconcile()
    bench.cluster.reads = 0
    step = 5
    assert await bench.reconcile(2) == [f"PUT {labels.KIND}/run"]
    assert bench.run["status"]["progress"]["step"] == 5
    assert bench.cluster.reads == 0

    bench.reconciler.event(KEY)
    await bench.reconcile(2)
    assert bench.cluster.reads > 0, "an event makes what was seen before void"
    bench.cluster.reads = 0
    await bench.reconcile(60)
    assert bench.cluster.reads > 0, "and so does time"


async def test_the_operators_own_status_write_is_no_event(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    assert not bench.reconciler.event(KEY, bench.run["metadata"]["resourceVersion"])
    assert bench.reconciler.event(KEY, "another")


async def test_the_record_is_written_before_the_status_and_never_fought_about(bench: Bench) -> None:
    bench.add_run(ttlSecondsAfterFinished=None)
    await bench.reconcile()
    bench.only_pod()["status"] = {"phase": "Failed"}
    bench.reconciler.event(KEY)
    calls = await bench.reconcile()
    assert calls[:2] == [f"PATCH {labels.KIND}/run", f"PUT {labels.KIND}/run"]
    assert '"condition":"Failed"' in bench.run["metadata"]["annotations"][labels.RECORD]
    del bench.run["metadata"]["annotations"]  # by a tool that keeps the object as its manifest is
    for _ in range(3):
        bench.reconciler.event(KEY)
        assert await bench.reconcile(60) == []


async def test_a_record_that_changed_meanwhile_is_looked_at_again(bench: Bench) -> None:
    bench.add_run(trainer={"template": {"spec": {"containers": {}}}})
    bench.cluster.fail[f"PATCH {labels.KIND}"] = ConflictError("changed")
    with pytest.raises(ConflictError):
        await bench.reconcile()
    assert "status" not in bench.run


async def test_a_record_that_is_refused_keeps_no_status_back_and_is_tried_again_later(bench: Bench) -> None:
    bench.add_run(trainer={"template": {"spec": {"containers": {}}}})
    bench.cluster.fail[f"PATCH {labels.KIND}"] = RejectedError("no right", final=False)
    await bench.reconcile()
    assert bench.run["status"]["state"] == "Failed"
    del bench.cluster.fail[f"PATCH {labels.KIND}"]
    bench.reconciler.event(KEY)
    assert await bench.reconcile(5) == []
    bench.reconciler.event(KEY)
    assert await bench.reconcile(90) == [f"PATCH {labels.KIND}/run"]


async def test_a_run_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    assert _conditions_in_metrics() != {}
    del bench.cluster.objects[labels.KIND, "ns", "run"]
    bench.reconciler.event(KEY)
    assert await bench.reconcile() == []
    assert _conditions_in_metrics() == {}


async def test_metrics_have_the_status_that_was_written(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    assert _conditions_in_metrics()["Failed"] == "false"
    bench.only_pod()["status"] = {"phase": "Failed"}
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert _conditions_in_metrics() == {"Complete": "false", "Failed": "true"}


async def test_metrics_have_what_the_api_server_answers_for_a_while(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    bench.cluster.fail["LIST Pod"] = UnreachableError("HTTP 500")
    bench.reconciler.event(KEY)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await bench.reconcile(10)
    name, progressing = "gymtrain_run_status_reason", {"condition": "Progressing", "reason": "APIServerError"}
    assert REGISTRY.get_sample_value(name, {"namespace": "ns", "run": "run", **progressing}) == 1.0


def _conditions_in_metrics() -> dict[str, str]:
    """The status of each condition of the run, as a scrape finds it."""
    samples = [sample for family in REGISTRY.collect() for sample in family.samples if sample.value == 1.0]
    of_run = [
        one.labels for one in samples if one.name == "gymtrain_run_status_condition" and one.labels["run"] == "run"
    ]
    return {one["condition"]: one["status"] for one in of_run}


async def test_an_ended_run_deletes_itself_by_its_uid(bench: Bench) -> None:
    bench.add_run(ttlSecondsAfterFinished=10)
    await bench.reconcile()
    bench.only_pod()["status"] = {"phase": "Failed"}
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert bench.run["status"]["state"] == "Failed"
    assert await bench.reconcile(60) == [f"DELETE {labels.KIND}/run"]
    assert (labels.KIND, "ns", "run") not in bench.cluster.objects


async def test_sandboxes_are_read_only_when_they_have_to_go(bench: Bench) -> None:
    bench.add_run(sandboxes={})
    await bench.pass_preflight()
    owner = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": "run", "uid": "run-uid", "controller": True}
    own = labels.run_labels("run", labels.Role.SANDBOX) | {labels.MANAGED_BY: labels.BROKER_VALUE}
    meta = {"name": "run-sb-1", "namespace": "ns", "labels": own, "ownerReferences": [owner]}
    bench.cluster.put(kinds.POD, {"kind": "Pod", "metadata": meta})
    bench.reconciler.event(KEY)
    assert "DELETE Pod/run-sb-1" not in await bench.reconcile()
    bench.run["spec"]["suspend"] = True
    bench.reconciler.event(KEY)
    assert "DELETE Pod/run-sb-1" in await bench.reconcile()
