"""What is looked for before preflight, kinds that the cluster may lack among it, and what is read of preflight."""

from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gymtrain_api import agent_sandbox
from gymtrain_api.times import to_text
from gymtrain_api.wiring import PREFLIGHT_MARK
from gymtrain_kube.errors import KubeError, NotFoundError, RejectedError, UnreadLogError
from gymtrain_operator import kinds
from tests.support.reconciler_bench import KEY, Bench
from tests.support.world import DEFAULTS, GYM_VERDICT


async def test_preflights_verdict_is_read_from_the_pods_logs(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    assert ("Job", "ns", "run-trainer-1") in bench.cluster.objects
    assert ("ConfigMap", "ns", "run-gym") in bench.cluster.objects


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


# ── kinds that the cluster may lack ──────────────────────────────────────────────────────────────


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
