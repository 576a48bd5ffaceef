"""Whose an object is that has a run's name or labels: the run's, an earlier one's of the name, or somebody else's."""

from typing import Any

import pytest

from gymtrain_api import labels, names
from gymtrain_kube.errors import ConflictError
from gymtrain_operator import kinds
from gymtrain_operator import observe as observing
from tests.support.reconciler_bench import KEY, Bench

IDENTITY = {"Secret", "ServiceAccount", "Role", "RoleBinding"}
BROKER = names.broker_identity("run", "run-uid")


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


# ── the broker's identity ────────────────────────────────────────────────────────────────────────


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
