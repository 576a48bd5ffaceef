"""One reconcile: what is read, what is written, and in which order."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY

from gymtrain_api import agent_sandbox, labels, names
from gymtrain_api.times import to_text
from gymtrain_api.wiring import PREFLIGHT_MARK, TrainerProgress
from gymtrain_kube.errors import (
    ConflictError,
    KubeError,
    NotFoundError,
    RejectedError,
    UnreachableError,
    UnreadLogError,
)
from gymtrain_operator import kinds
from gymtrain_operator import observe as observing
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.observe import Observer
from gymtrain_operator.reconciler import Reconciler
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.world import DEFAULTS, GYM_VERDICT, INFERENCE_VERDICT, OFFER, TRAINER_VERDICT, spec

KEY = ("ns", "run")
IDENTITY = {"Secret", "ServiceAccount", "Role", "RoleBinding"}
BROKER = names.broker_identity("run", "run-uid")


class Bench:
    """A reconciler on a fake cluster, with a clock and answers of pods that the test sets."""

    def __init__(self, session: aiohttp.ClientSession, defaults: Defaults = DEFAULTS) -> None:
        self.cluster = FakeKubeClient()
        self.now = 1_800_000_000.0
        observer = Observer(self.cluster, session, defaults)
        self.reconciler = Reconciler(self.cluster, observer, defaults, lambda: self.now)

    def add_run(self, uid: str = "run-uid", **blocks: Any) -> None:
        meta = {"name": "run", "namespace": "ns", "uid": uid, "generation": 1}
        self.cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": meta, "spec": spec(**blocks)})

    @property
    def run(self) -> dict[str, Any]:
        return self.cluster.objects[labels.KIND, "ns", "run"]

    async def reconcile(self, seconds: float = 1.0) -> list[str]:
        """The writes of one reconcile."""
        self.now += seconds
        self.cluster.calls.clear()
        await self.reconciler.reconcile(KEY)
        return self.cluster.calls

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [one for (name, _, _), one in self.cluster.objects.items() if name == "Event" and one["type"] == kind]

    def only_pod(self) -> dict[str, Any]:
        (pod,) = [o for (kind, _, _), o in self.cluster.objects.items() if kind == "Pod"]
        return pod

    async def pass_preflight(self) -> None:
        await self.reconcile()
        self.only_pod()["status"] = {"phase": "Succeeded"}
        await self.read_verdicts()

    async def read_verdicts(self) -> None:
        verdicts = {"gym": GYM_VERDICT, "trainer": TRAINER_VERDICT, "inference": INFERENCE_VERDICT}
        for container, verdict in verdicts.items():
            self.cluster.logs_text[container] = PREFLIGHT_MARK + verdict.model_dump_json()
        self.reconciler.event(KEY)
        await self.reconcile()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def bench(session: aiohttp.ClientSession) -> Bench:
    return Bench(session)


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


async def test_preflights_verdict_is_read_from_the_pods_logs(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    assert ("Job", "ns", "run-trainer-1") in bench.cluster.objects
    assert ("ConfigMap", "ns", "run-gym") in bench.cluster.objects


async def test_a_refused_object_is_told_in_the_status_of_the_same_reconcile(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Pod"] = RejectedError("spec.containers[0].image: Required value", final=True)
    await bench.reconcile()
    failed = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True"
    assert "the API server refuses Pod run-preflight" in failed["message"]


async def test_a_template_of_another_shape_fails_the_run_and_is_named(bench: Bench) -> None:
    bench.add_run(trainer={"template": {"spec": {"containers": {"name": "trainer"}}}})
    calls = await bench.reconcile()
    # The run's record and its status; nothing is made.
    assert [call for call in calls if "Event" not in call] == [f"PATCH {labels.KIND}/run", f"PUT {labels.KIND}/run"]
    failed = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidSpec")
    assert "spec.trainer.template.spec.containers: must be a list" in failed["message"]


async def test_a_refused_change_of_an_object_that_is_there_is_told_and_ends_nothing(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerationz": []}}}
    bench.cluster.fail["APPLY Deployment"] = RejectedError(".spec.tolerationz: field not declared", final=True)
    bench.reconciler.event(KEY)
    calls = await bench.reconcile()
    assert not [call for call in calls if call.startswith("DELETE")]
    conditions = {c["type"]: c for c in bench.run["status"]["conditions"]}
    assert conditions["Failed"]["status"] == "False"
    assert conditions["Progressing"]["status"] == "False"
    assert "Deployment run-inference for now, retrying: .spec.tolerationz" in conditions["Progressing"]["message"]


def _condition(bench: Bench, kind: str) -> dict[str, Any]:
    return next(one for one in bench.run["status"]["conditions"] if one["type"] == kind)


async def _to_second_attempt(bench: Bench) -> None:
    """The first trainer has failed, and the next one is due."""
    await bench.pass_preflight()
    job = bench.cluster.objects["Job", "ns", "run-trainer-1"]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": to_text(bench.now)}]}
    bench.reconciler.event(KEY)
    await bench.reconcile(15)


@pytest.mark.parametrize("final", [True, False])
async def test_nothing_that_is_refused_of_a_later_attempt_ends_the_run(bench: Bench, final: bool) -> None:
    bench.add_run()
    words = 'Job.batch "run-trainer-2" is invalid' if final else "ValidatingAdmissionPolicy 'p' denied request: no"
    bench.cluster.fail["CREATE Job/run-trainer-2"] = RejectedError(words, final=final)
    await _to_second_attempt(bench)
    progressing = _condition(bench, "Progressing")
    assert _condition(bench, "Failed")["status"] == "False"
    assert progressing["status"] == "False"
    assert words in progressing["message"]
    bench.cluster.fail.clear()
    bench.reconciler.event(KEY)
    assert "CREATE Job/run-trainer-2" in await bench.reconcile(15)
    assert bench.run["status"]["attempt"] == 2


async def test_a_mistake_in_the_first_attempts_job_ends_the_run(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Job"] = RejectedError('unknown field "spec.template.spec.tolerationz"', final=True)
    await bench.pass_preflight()
    assert _condition(bench, "Failed")["reason"] == "InvalidSpec"


async def test_a_run_that_has_trained_and_resumes_is_not_ended_by_a_refusal(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["status"]["progress"] = {"step": 7}
    del bench.cluster.objects["Job", "ns", "run-trainer-1"]
    bench.cluster.fail["CREATE Job"] = RejectedError("unknown field", final=True)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert _condition(bench, "Failed")["status"] == "False"


async def test_what_is_refused_is_tried_again_after_pauses_that_grow(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Pod"] = RejectedError("exceeded quota: pods", final=False)
    tries = []
    for second in range(0, 200, 5):
        bench.reconciler.event(KEY)
        if [call for call in await bench.reconcile(5) if call.startswith("CREATE Pod")]:
            tries.append(second)
        assert "exceeded quota" in _condition(bench, "Progressing")["message"]
    assert [b - a for a, b in pairwise(tries)] == [10, 20, 40, 60, 60]


async def test_an_object_that_was_changed_is_tried_at_once(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerationz": []}}}
    bench.cluster.fail["APPLY Deployment"] = RejectedError("no such field", final=True)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerations": []}}}
    bench.cluster.fail.clear()
    bench.reconciler.event(KEY)
    assert "APPLY Deployment/run-inference" in await bench.reconcile()


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("PATCH /deployments: HTTP 500: etcdserver: no leader"),
        UnreachableError("PATCH /deployments: HTTP 429: too many requests", retry_after=1.0),
        ConflictError('Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas'),
    ],
)
async def test_an_api_server_that_takes_nothing_for_a_while_is_quoted_in_the_status(
    bench: Bench, error: KubeError
) -> None:
    bench.add_run()
    await bench.pass_preflight()
    del bench.cluster.objects["Deployment", "ns", "run-inference"]
    bench.cluster.fail["APPLY Deployment"] = error
    since = to_text(bench.now + 1)
    bench.reconciler.event(KEY)
    for _ in range(8):
        with pytest.raises(type(error)):
            await bench.reconcile(1)
    progressing = _condition(bench, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "APIServerError")
    assert str(error) in progressing["message"]
    assert since in progressing["message"]
    assert [event["reason"] for event in bench.events("Warning")] == ["PreflightWarnings", "APIServerError"]
    written = bench.run["metadata"]["resourceVersion"]
    assert not bench.reconciler.event(KEY, written), "its own write of the status is no event"
    with pytest.raises(type(error)):
        await bench.reconcile(1)
    assert bench.run["metadata"]["resourceVersion"] == written, "the same words are written once"
    bench.cluster.fail.clear()
    await bench.reconcile(1)
    assert _condition(bench, "Progressing")["reason"] != "APIServerError"


async def test_one_conflict_is_no_news(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    del bench.cluster.objects["Deployment", "ns", "run-inference"]
    bench.cluster.fail["APPLY Deployment"] = ConflictError("changed")
    before = bench.run["status"]
    bench.reconciler.event(KEY)
    with pytest.raises(ConflictError):
        await bench.reconcile()
    assert bench.run["status"] == before


async def test_a_run_that_can_t_even_be_looked_at_says_so(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["LIST Pod"] = RejectedError("pods is forbidden: no right to list them", final=False)
    for _ in range(8):
        with pytest.raises(RejectedError):
            await bench.reconcile(1)
    assert "no right to list them" in _condition(bench, "Progressing")["message"]
    assert bench.run["status"]["state"] == "Preflight"


async def test_an_ended_run_stays_as_it_ended_whatever_the_api_server_answers(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    bench.only_pod()["status"] = {"phase": "Failed"}
    bench.reconciler.event(KEY)
    await bench.reconcile()
    before = bench.run["status"]
    bench.cluster.fail["LIST Pod"] = UnreachableError("HTTP 500")
    for _ in range(8):
        bench.reconciler.event(KEY)
        with pytest.raises(UnreachableError):
            await bench.reconcile(1)
    assert bench.run["status"] == before


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


async def test_a_name_that_belongs_to_somebody_else_is_not_taken(bench: Bench) -> None:
    bench.add_run()
    foreign = {"kind": "ConfigMap", "metadata": {"name": "run-run", "namespace": "ns"}, "data": {"mine": "1"}}
    bench.cluster.put(kinds.CONFIG_MAP, foreign)
    await bench.reconcile()
    assert bench.cluster.objects["ConfigMap", "ns", "run-run"]["data"] == {"mine": "1"}
    progressing = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Progressing")
    assert "ConfigMap run-run exists already and isn't part of this run" in progressing["message"]


def _of_an_earlier_run(of_kind: str, of_name: str, **owner: Any) -> dict[str, Any]:
    earlier = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": "run", "uid": "earlier"}
    meta = {"name": of_name, "namespace": "ns", "labels": labels.run_labels("run")}
    return {"kind": of_kind, "metadata": meta | {"ownerReferences": [earlier | {"controller": True} | owner]}}


async def test_what_the_garbage_collector_left_of_an_earlier_run_of_the_name_is_deleted(bench: Bench) -> None:
    """It missed the end of that run where another of the name came while its watch was broken, and does no more."""
    bench.add_run()
    bench.cluster.put(kinds.CONFIG_MAP, _of_an_earlier_run("ConfigMap", "run-run"))
    bench.cluster.put(kinds.SERVICE, _of_an_earlier_run("Service", "run-gym-unused"))
    calls = await bench.reconcile()
    assert {"DELETE ConfigMap/run-run", "DELETE Service/run-gym-unused"} <= set(calls)
    assert calls.index("DELETE ConfigMap/run-run") < calls.index("APPLY ConfigMap/run-run")
    owners = bench.cluster.objects["ConfigMap", "ns", "run-run"]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["run-uid"]


async def test_a_volume_of_an_earlier_run_of_the_name_that_the_garbage_collector_left_is_deleted(bench: Bench) -> None:
    """One that outlives its run has no owner, so this one was to go with it; its name is the next run's."""
    bench.add_run(trainer={"checkpoint": {"size": "1Gi", "retain": "Delete"}})
    bench.cluster.put(kinds.VOLUME_CLAIM, _of_an_earlier_run("PersistentVolumeClaim", "run-checkpoints"))
    calls = await bench.reconcile()
    assert "DELETE PersistentVolumeClaim/run-checkpoints" in calls
    await bench.reconcile()
    owners = bench.cluster.objects["PersistentVolumeClaim", "ns", "run-checkpoints"]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["run-uid"]


@pytest.mark.parametrize("owner", [{"name": "other"}, {"kind": "Sandbox"}])
async def test_what_another_owner_has_is_left_alone(bench: Bench, owner: dict[str, str]) -> None:
    bench.add_run()
    bench.cluster.put(kinds.SERVICE, _of_an_earlier_run("Service", "run-gym-unused", **owner))
    assert not [call for call in await bench.reconcile() if call.startswith("DELETE")]


async def test_what_of_an_earlier_run_is_still_on_its_way_out_is_waited_for(bench: Bench) -> None:
    bench.add_run()
    left = _of_an_earlier_run("ConfigMap", "run-run")
    left["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    bench.cluster.put(kinds.CONFIG_MAP, left)
    calls = await bench.reconcile()
    assert not [call for call in calls if call.startswith("DELETE")]
    progressing = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Progressing")
    assert "ConfigMap run-run of an earlier run of this name is still on its way out" in progressing["message"]


async def test_the_budget_of_an_earlier_run_of_the_name_is_not_taken_for_its_own(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.put(kinds.DISRUPTION_BUDGET, _of_an_earlier_run("PodDisruptionBudget", "run-inference"))
    await bench.pass_preflight()
    await bench.reconcile()
    budget = bench.cluster.objects["PodDisruptionBudget", "ns", "run-inference"]
    assert [owner["uid"] for owner in budget["metadata"]["ownerReferences"]] == ["run-uid"]


async def test_its_own_budget_is_left_alone_where_its_servers_are_written_again(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    await bench.reconcile()
    before = bench.cluster.objects["PodDisruptionBudget", "ns", "run-inference"]
    del bench.cluster.objects["Deployment", "ns", "run-inference"]
    bench.reconciler.event(KEY)
    calls = await bench.reconcile()
    assert "APPLY Deployment/run-inference" in calls
    assert bench.cluster.objects["PodDisruptionBudget", "ns", "run-inference"] is before


async def test_a_labelled_object_of_somebody_else_is_neither_read_nor_deleted(bench: Bench) -> None:
    bench.add_run(suspend=True)
    meta = {"name": "x", "namespace": "ns", "labels": labels.run_labels("run")}
    bench.cluster.put(kinds.DEPLOYMENT, {"kind": "Deployment", "metadata": meta, "spec": {}})
    calls = await bench.reconcile()
    assert not [call for call in calls if call.startswith("DELETE")]


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


async def test_missing_claims_are_looked_for_before_preflight_and_not_after(bench: Bench) -> None:
    bench.add_run(data={"train": [{"source": "pvc://rows/a.jsonl"}]})
    await bench.reconcile()
    condition = bench.run["status"]["conditions"][0]
    assert condition["message"] == ("spec.data.train[0].source: PersistentVolumeClaim rows not found in namespace ns")
    meta = {"name": "rows", "namespace": "ns"}
    bench.cluster.put(kinds.VOLUME_CLAIM, {"kind": "PersistentVolumeClaim", "metadata": meta})
    await bench.reconcile()
    assert bench.only_pod()


async def test_a_preflight_pod_that_is_deleted_while_its_logs_are_read_is_made_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its containers ended well: that one has no log any more says nothing of the run."""
    bench.add_run()
    await bench.reconcile()
    pod = bench.only_pod()
    pod["status"] = {"phase": "Succeeded"}

    async def logs(namespace: str, name: str, container: str, **_: Any) -> str:
        if container == "gym":
            return PREFLIGHT_MARK + GYM_VERDICT.model_dump_json()
        bench.cluster.objects.pop(("Pod", "ns", name), None)
        raise NotFoundError(f"pods {name} not found")

    monkeypatch.setattr(bench.cluster, "logs", logs)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert bench.run["status"]["state"] == "Preflight"
    bench.reconciler.event(KEY)
    assert [call for call in await bench.reconcile() if call.startswith("CREATE Pod")] != []


@pytest.mark.parametrize(
    "refused",
    [
        UnreadLogError("unable to retrieve container logs for containerd://0f3c"),
        NotFoundError("pods run-preflight not found"),  # of a kubelet that has just started
        RejectedError("container gym is not available", final=True),
    ],
)
async def test_a_verdict_that_the_node_does_not_give_yet_is_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refused: KubeError
) -> None:
    """As while containerd or the kubelet restarts: its containers ended well, so they have one."""
    bench.add_run()
    await bench.reconcile()
    ended = {"terminated": {"exitCode": 0, "finishedAt": to_text(bench.now)}}
    statuses = [{"name": name, "state": ended} for name in ("gym", "trainer", "inference")]
    bench.only_pod()["status"] = {"phase": "Succeeded", "containerStatuses": statuses}
    logs = bench.cluster.logs

    async def away(*_: Any, **__: Any) -> str:
        raise refused

    monkeypatch.setattr(bench.cluster, "logs", away)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert bench.run["status"]["state"] == "Preflight"
    monkeypatch.setattr(bench.cluster, "logs", logs)
    await bench.read_verdicts()
    assert ("Job", "ns", "run-trainer-1") in bench.cluster.objects


@pytest.mark.parametrize("kind", ["ConfigMap", "NetworkPolicy", "Service", "Deployment", "Job"])
async def test_an_object_whose_labels_somebody_took_gets_them_back(bench: Bench, kind: str) -> None:
    bench.add_run()
    await bench.pass_preflight()
    key = next(key for key in bench.cluster.objects if key[0] == kind)
    before = bench.cluster.objects[key]["metadata"].pop("labels")
    bench.reconciler.event(KEY)
    with pytest.raises(ConflictError, match=f"{kind} {key[2]} had lost labels of the run: .*gymtrain.dev/run"):
        await bench.reconcile()
    assert bench.cluster.objects[key]["metadata"]["labels"] == before
    bench.reconciler.event(KEY)
    assert not [call for call in await bench.reconcile() if call.split()[1].split("/")[0] == kind], "all is as it was"


def test_pods_of_another_runs_job_are_not_ours() -> None:
    owner = {"kind": "Job", "uid": "other", "controller": True}
    pod = {"metadata": {"name": "p", "ownerReferences": [owner]}}
    assert not observing._is_ours(pod, "Pod", "run-uid", {"job-uid"})
    owner["uid"] = "job-uid"
    assert observing._is_ours(pod, "Pod", "run-uid", {"job-uid"})


def test_a_trainer_whose_job_is_not_there_is_a_stray() -> None:
    owner = {"kind": "Job", "uid": "job-uid", "controller": True}
    meta = {"name": "p", "ownerReferences": [owner], "labels": {labels.ROLE: "trainer"}}
    assert observing._is_stray({"metadata": meta}, "run-uid", set())
    assert not observing._is_stray({"metadata": meta}, "run-uid", {"job-uid"})
    assert observing._is_stray({"metadata": meta | {"ownerReferences": []}}, "run-uid", {"job-uid"}), "orphaned"
    assert not observing._is_stray({"metadata": meta | {"labels": {labels.ROLE: "gym"}}}, "run-uid", set())


async def test_the_brokers_token_is_made_when_its_secret_is_created_and_never_read(bench: Bench) -> None:
    bench.add_run(sandboxes={})
    await bench.pass_preflight()
    secret = bench.cluster.objects["Secret", "ns", BROKER]
    assert len(secret["stringData"]["token"]) == 64
    bench.now += 700
    bench.reconciler.event(KEY)
    assert not [call for call in await bench.reconcile() if "Secret" in call]


async def test_a_broker_that_comes_back_keeps_its_token(bench: Bench) -> None:
    bench.add_run(sandboxes={})
    await bench.pass_preflight()
    before = bench.cluster.objects["Secret", "ns", BROKER]
    del bench.cluster.objects["Deployment", "ns", "run-broker"]
    bench.reconciler.event(KEY)
    assert "APPLY Deployment/run-broker" in await bench.reconcile()
    assert bench.cluster.objects["Secret", "ns", BROKER] == before


async def test_a_run_that_is_applied_again_has_a_broker_identity_that_stays(bench: Bench) -> None:
    """What an earlier run of the name owned is collected some time after it is gone, while the next one starts."""
    bench.add_run(sandboxes={})
    await bench.pass_preflight()
    earlier = {key for key in bench.cluster.objects if key[0] != labels.KIND}
    left = {key: bench.cluster.objects[key] for key in earlier if key[0] in IDENTITY}
    bench.cluster.objects = dict(left)
    bench.add_run("the-next-uid", sandboxes={})
    bench.reconciler.event(KEY)
    await bench.pass_preflight()
    for key in left:
        del bench.cluster.objects[key]
    pod = bench.cluster.objects["Deployment", "ns", "run-broker"]["spec"]["template"]["spec"]
    (token,) = (volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
    assert {("Secret", "ns", token), ("ServiceAccount", "ns", pod["serviceAccountName"])} < set(bench.cluster.objects)
    (binding,) = (one for (kind, _, _), one in bench.cluster.objects.items() if kind == "RoleBinding")
    assert ("Role", "ns", binding["roleRef"]["name"]) in bench.cluster.objects
    assert [subject["name"] for subject in binding["subjects"]] == [pod["serviceAccountName"]]


async def test_a_service_account_of_somebody_else_is_not_given_the_brokers_rights(bench: Bench) -> None:
    meta = {"name": "run-broker", "namespace": "ns", "annotations": {"eks.amazonaws.com/role-arn": "theirs"}}
    bench.cluster.put(kinds.SERVICE_ACCOUNT, {"kind": "ServiceAccount", "metadata": meta})
    bench.add_run(sandboxes={})
    await bench.pass_preflight()
    pod = bench.cluster.objects["Deployment", "ns", "run-broker"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] != "run-broker"
    (binding,) = (one for (kind, _, _), one in bench.cluster.objects.items() if kind == "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == [pod["serviceAccountName"]]


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


async def test_demanding_what_the_cluster_does_not_serve_stops_before_preflight(bench: Bench) -> None:
    bench.add_run(sandboxes={"backend": "AgentSandbox"})
    calls = await bench.reconcile()
    assert not [call for call in calls if "Pod" in call]
    (passed,) = [one for one in bench.run["status"]["conditions"] if one["type"] == "PreflightPassed"]
    assert agent_sandbox.API_VERSION in passed["message"]
    assert "backend: Pod" in passed["message"]
    bench.cluster.serves_agent_sandbox = True
    assert [call for call in await bench.reconcile(10) if call.startswith("CREATE Pod")]


async def test_rights_that_the_operator_lacks_are_no_failure_of_auto(bench: Bench) -> None:
    bench.cluster.serves_agent_sandbox = True
    bench.add_run(sandboxes={})
    real = bench.cluster.get

    async def get(kind: kinds.Kind, namespace: str | None, name: str) -> dict[str, Any]:
        if kind is kinds.SANDBOX_POOL:
            raise RejectedError("sandboxwarmpools is forbidden", final=False)
        return await real(kind, namespace, name)

    bench.cluster.get = get  # type: ignore[method-assign]
    await bench.pass_preflight()
    await bench.reconcile()
    (ready,) = [one for one in bench.run["status"]["conditions"] if one["type"] == "SandboxesReady"]
    assert "Backend Pod: the operator may not use agent-sandbox" in ready["message"]


async def test_servers_of_several_pods_wait_for_lws_before_preflight(bench: Bench) -> None:
    bench.cluster.fail["LIST LeaderWorkerSet"] = NotFoundError("the server could not find the requested resource")
    bench.add_run(inference={"nodes": 2})
    calls = await bench.reconcile()
    assert not [call for call in calls if "Pod" in call]
    (passed,) = [one for one in bench.run["status"]["conditions"] if one["type"] == "PreflightPassed"]
    assert passed["message"].startswith("spec.inference.nodes: the cluster does not serve LeaderWorkerSet")
    assert "install LeaderWorkerSet" in passed["message"]
    bench.cluster.serves_groups = True
    assert [call for call in await bench.reconcile(10) if call.startswith("CREATE Pod")]


async def test_pods_that_are_placed_together_wait_for_the_kind_before_preflight(session: aiohttp.ClientSession) -> None:
    bench = Bench(session, replace(DEFAULTS, gang_scheduler="gangs"))
    bench.cluster.fail["LIST PodGroup"] = NotFoundError("the server could not find the requested resource")
    bench.add_run()
    calls = await bench.reconcile()
    assert not [call for call in calls if "Pod" in call]
    (passed,) = [one for one in bench.run["status"]["conditions"] if one["type"] == "PreflightPassed"]
    assert passed["message"].startswith("gangScheduling.schedulerName: the cluster does not serve PodGroup of")
    bench.cluster.serves_pod_groups = True
    del bench.cluster.fail["LIST PodGroup"]
    await bench.pass_preflight()
    assert bench.cluster.objects["PodGroup", "ns", "run-gang"]["spec"] == {"minMember": 2}


async def test_lws_that_goes_away_in_a_run_is_named(bench: Bench) -> None:
    bench.cluster.serves_groups = True
    bench.cluster.fail["APPLY LeaderWorkerSet"] = NotFoundError("the server could not find the requested resource")
    bench.add_run(inference={"nodes": 2})
    await bench.pass_preflight()
    (progressing,) = [one for one in bench.run["status"]["conditions"] if one["type"] == "Progressing"]
    assert "install LeaderWorkerSet (https://lws.sigs.k8s.io)" in progressing["message"]


async def test_other_runs_never_ask_for_lws(bench: Bench) -> None:
    bench.cluster.fail["LIST LeaderWorkerSet"] = AssertionError("asked for")
    bench.add_run()
    await bench.pass_preflight()
    assert (await bench.reconcile()) is not None


async def test_pods_that_a_stateful_set_made_are_the_runs(bench: Bench) -> None:
    """A group's pods belong to StatefulSets, of the LeaderWorkerSet and of its leaders."""
    bench.cluster.serves_groups = True
    bench.add_run(inference={"nodes": 2})
    await bench.pass_preflight()
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "run-vllm", "uid": "s", "controller": True}
    own = labels.run_labels("run", labels.Role.INFERENCE)
    meta = {"name": "run-vllm-0", "namespace": "ns", "labels": own, "ownerReferences": [owner]}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    bench.cluster.put(kinds.POD, {"kind": "Pod", "metadata": meta, "status": ready})
    bench.reconciler.event(KEY)
    await bench.reconcile()
    (shown,) = [one for one in bench.run["status"]["servers"] if one["kind"] == "inference"]
    assert shown["ready"] == "1/1"
