"""What is particular to sandboxes that agent-sandbox makes; the rest of this folder runs with both backends."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gymtrain_api import agent_sandbox, labels
from gymtrain_api.sandboxes import SandboxRequest, SandboxState, sandbox_token
from gymtrain_broker.backends import agent_objects, agent_sandboxes
from gymtrain_broker.backends.agent_sandboxes import AgentSandboxBackend
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects.leases import Found, Lease, MadeFor, lease_patch
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.access import Access
from gymtrain_kube.errors import UnreachableError
from tests.support.fake_agent_sandbox import FakeAgentSandbox
from tests.unit.broker.conftest import TOKEN, Bench, Start, settings

pytestmark = pytest.mark.backend("AgentSandbox")


def _template(**spec: Any) -> dict[str, Any]:
    config = replace(settings(**spec), backend="AgentSandbox")
    return agent_objects.template(config, PodShapes(config).of("task:1"))


def _env(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    container = next(one for one in containers if one["name"] == name)
    return {one["name"]: one for one in container.get("env") or []}


def test_the_runs_own_fences_are_the_only_ones() -> None:
    spec = _template()["spec"]
    assert (spec["networkPolicyManagement"], spec["service"]) == ("Unmanaged", False)
    assert spec["podTemplate"]["metadata"]["labels"][labels.ROLE] == labels.Role.SANDBOX


def test_the_tasks_container_knows_neither_the_runs_token_nor_its_own() -> None:
    template = _template()
    pod = template["spec"]["podTemplate"]["spec"]
    assert TOKEN not in str(template)
    task, installer = _env(pod["containers"], "sandbox"), _env(pod["initContainers"], "sandboxd")
    assert task["GYMTRAIN_SANDBOX_TOKEN_FILE"]["value"] == "/gymtrain/token.sha256"
    assert "secretKeyRef" not in str(task)
    assert installer["GYMTRAIN_SANDBOX_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "run-broker-abc", "key": "token"}
    assert installer["GYMTRAIN_SANDBOX_IDENTITY"]["valueFrom"]["fieldRef"] == {"fieldPath": "metadata.uid"}
    mounts = next(one for one in pod["containers"] if one["name"] == "sandbox")["volumeMounts"]
    assert [(one["mountPath"], one["readOnly"]) for one in mounts] == [("/gymtrain", True)]


def test_the_daemon_knows_the_limit_of_disk() -> None:
    task = _env(_template()["spec"]["podTemplate"]["spec"]["containers"], "sandbox")
    source = {"containerName": "sandbox", "resource": "limits.ephemeral-storage"}
    assert task["GYMTRAIN_SANDBOX_DISK"]["valueFrom"] == {"resourceFieldRef": source}


def test_a_template_of_other_settings_has_another_name() -> None:
    assert _template()["metadata"]["name"] != _template(root=True)["metadata"]["name"]


def test_a_claim_ends_by_itself_after_its_lease_and_brings_no_variables() -> None:
    config = settings()
    lease = Lease("sb-1", 1000.0, 1000.0, 50.0, 60.0, 0, Found.NONE)
    claim = agent_objects.sandbox_claim(
        config,
        PodShapes(config).of("task:1"),
        "task:1",
        "run-sb-x",
        "pool",
        1000.0,
        made_for=MadeFor.CLAIM,
        lease=lease,
        request=None,
    )
    lifecycle = claim["spec"]["lifecycle"]
    assert lifecycle["shutdownPolicy"] == "Delete"
    assert datetime.fromisoformat(lifecycle["shutdownTime"]).timestamp() == 1000 + 50 + 60 + 300
    assert set(claim["spec"]) == {"warmPoolRef", "lifecycle"}


async def test_the_run_owns_all_that_is_made(start: Start, cluster: FakeAgentSandbox) -> None:
    bench = await start()
    await bench.ask()
    made = [*cluster.claims.values(), *cluster.templates.values(), *cluster.pools.values()]
    assert [one["kind"] for one in made] == [agent_sandbox.CLAIM, agent_sandbox.TEMPLATE, agent_sandbox.POOL]
    for one in made:
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["uid"], one["metadata"]["labels"][labels.RUN]) == ("run-uid", "run")


async def test_all_sandboxes_of_a_shape_share_an_empty_pool(start: Start, cluster: FakeAgentSandbox) -> None:
    bench = await start(warmPools=[{"image": "task:1", "replicas": 2}])
    await bench.until(lambda: len(bench.free_ready()) == 2)
    await bench.ask()
    (pool,) = cluster.pools.values()
    assert pool["spec"]["replicas"] == 0
    assert {claim["spec"]["warmPoolRef"]["name"] for claim in cluster.claims.values()} == {pool["metadata"]["name"]}


async def test_a_pod_that_was_made_anew_is_another_sandbox(start: Start, cluster: FakeAgentSandbox) -> None:
    bench = await start()
    _, found = await bench.ask()
    cluster.remove(found["podName"])
    after = await bench.until_state(found["id"], SandboxState.FAILED)
    assert after["reason"] == "PodDeleted"
    await bench.until(lambda: not cluster.claims and not cluster.pods)


async def test_a_pod_that_was_made_anew_while_no_broker_looked_is_told(start: Start, cluster: FakeAgentSandbox) -> None:
    first = await start()
    _, found = await first.ask(key="k")
    await first.stop()
    cluster.remove(found["podName"])
    assert found["podName"] in cluster.pods
    second = await start()
    assert (await second.until_state(found["id"], SandboxState.FAILED))["reason"] == "PodDeleted"


async def test_a_pod_taken_from_somebodys_pool_keeps_its_name(start: Start, cluster: FakeAgentSandbox) -> None:
    cluster.controls = False
    bench = await start()
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: cluster.claims)
    (claim,) = cluster.claims
    cluster.pod_names[claim] = "pool-abcde"
    cluster.control()
    found = await bench.get(asked["id"], wait=5)
    assert (found["state"], found["podName"]) == ("Running", "pool-abcde")
    assert found["token"] == sandbox_token(TOKEN, cluster.pods["pool-abcde"]["metadata"]["uid"])


async def test_a_pod_that_may_never_be_is_refused_with_the_reason(start: Start, cluster: FakeAgentSandbox) -> None:
    cluster.pod_refusal = 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'
    status, found = await (await start()).ask()
    assert (status, found["reason"]) == (422, "Rejected")
    assert "PodSecurity" in found["message"]


async def test_a_quota_that_is_used_up_is_waited_for(start: Start, cluster: FakeAgentSandbox) -> None:
    cluster.pod_refusal = 'pods "x" is forbidden: exceeded quota: compute'
    bench = await start()
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: bench.process.broker.document(bench.process.broker.find(asked["id"])).reason)
    starting = await bench.get(asked["id"])
    assert (starting["state"], "exceeded quota" in starting["message"]) == ("Starting", True)
    cluster.pod_refusal = ""
    cluster.control()
    assert (await bench.get(asked["id"], wait=5))["state"] == "Running"


async def test_a_controller_that_is_silent_is_named(start: Start, cluster: FakeAgentSandbox) -> None:
    cluster.controls = False
    _, found = await (await start()).ask(timeoutSeconds=0.3)
    assert (found["reason"], "--extensions" in found["message"]) == ("Deadline", True)


async def test_a_pool_that_somebody_deleted_is_made_anew(start: Start, cluster: FakeAgentSandbox) -> None:
    bench = await start()
    await bench.ask()
    cluster.pools.clear()
    cluster.templates.clear()
    _, stuck = await bench.ask(wait=0)
    await bench.until(lambda: bench.process.broker.document(bench.process.broker.find(stuck["id"])).reason)
    assert (await bench.get(stuck["id"]))["reason"] == "WarmPoolNotFound"
    assert (await bench.ask())[0] == 201
    cluster.control()
    assert (await bench.get(stuck["id"], wait=5))["state"] == "Running"


async def _use(bench: Bench, image: str) -> None:
    _, found = await bench.ask(image)
    assert found["state"] == "Running"
    await bench.close(found["id"])
    await bench.until(lambda: found["podName"] not in bench.cluster.pods)


def _images(cluster: FakeAgentSandbox) -> set[str]:
    """Of the templates, each of which has its pool."""
    assert cluster.pools.keys() == cluster.templates.keys()
    specs = (one["spec"]["podTemplate"]["spec"] for one in cluster.templates.values())
    return {spec["containers"][0]["image"] for spec in specs}


async def test_of_tasks_with_an_image_each_few_templates_stay(
    start: Start, cluster: FakeAgentSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sandboxes, "MOST_IDLE", 2)
    bench = await start()
    _, held = await bench.ask("held:1")
    for image in ("a:1", "b:1", "a:1", "c:1", "d:1", "e:1"):
        await _use(bench, image)
        left = _images(cluster)
        assert "a:1" in left or "b:1" not in left  # a's was used after b's
    assert {"held:1", "d:1", "e:1"} <= left
    assert len(left) <= 4  # two, those in use, and the last claim's, which may have been on its way out
    assert not left & {"a:1", "b:1"}
    await _use(bench, "a:1")
    assert (await bench.get(held["id"]))["state"] == "Running"


async def test_templates_of_the_broker_before_are_removed_too(
    start: Start, cluster: FakeAgentSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sandboxes, "MOST_IDLE", 1)
    bench = await start()
    await _use(bench, "a:1")
    await bench.stop()
    bench = await start()
    for image in ("b:1", "c:1", "d:1"):
        await _use(bench, image)
    assert not _images(cluster) & {"a:1", "b:1"}


async def test_a_template_that_could_not_be_removed_is_tried_again(
    start: Start, cluster: FakeAgentSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sandboxes, "MOST_IDLE", 1)
    bench = await start()
    for image in ("a:1", "b:1"):
        await _use(bench, image)
    kept = dict(cluster.pools)
    monkeypatch.setattr(ThrottledClient, "delete", _failing_for(agent_sandbox.POOLS, ThrottledClient.delete))
    await _use(bench, "c:1")
    assert kept.keys() < cluster.pools.keys()
    monkeypatch.undo()
    monkeypatch.setattr(agent_sandboxes, "MOST_IDLE", 1)
    for image in ("d:1", "e:1"):
        await _use(bench, image)
    assert not _images(cluster) & {"a:1", "b:1", "c:1"}


def _failing_for(plural: str, delete: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def fails(self: ThrottledClient, path: str, uid: str, **more: Any) -> None:
        if f"/{plural}/" in path:
            raise UnreachableError("no answer")
        await delete(self, path, uid, **more)

    return fails


async def test_a_sandbox_is_never_reused_in_place(start: Start, cluster: FakeAgentSandbox) -> None:
    bench = await start(warmPools=[{"image": "task:1", "reuse": "Restart"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    await bench.close(found["id"])
    await bench.until(lambda: found["podName"] not in cluster.pods)
    assert not cluster.resets
    (template,) = cluster.templates.values()
    assert template["spec"]["podTemplate"]["spec"]["restartPolicy"] == "Never"


async def test_an_event_that_an_answer_overtook_shows_what_is_newest(cluster: FakeAgentSandbox) -> None:
    config = replace(settings(), backend="AgentSandbox")
    lease = Lease("sb-1", 0.0, 0.0, 60.0, 60.0, 0, Found.READY)
    backend = AgentSandboxBackend(ThrottledClient(Access(cluster.url), Metrics()), config)
    await backend.list_all()
    ahead = backend.sandbox(PodShapes(config).of("task:1"), "task:1", "run-sb-x", made_for=MadeFor.POOL)
    await backend.create(ahead, urgent=True)
    await backend.patch("run-sb-x", lease_patch("", lease, SandboxRequest(image="task:1")))
    async with aclosing(backend.watch("")) as events:
        shown = await anext(sandbox async for _, sandbox in events if sandbox["metadata"])
    await backend.close()
    assert shown["metadata"]["annotations"][labels.SANDBOX_CLAIM] == "sb-1"


async def test_nothing_of_a_pod_is_written(start: Start, cluster: FakeAgentSandbox) -> None:
    """The broker's Role has no right to."""
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    await bench.close(found["id"])
    api = bench.metrics.registry.get_sample_value
    assert api("gymtrain_broker_api_requests_total", {"method": "DELETE", "code": "200"}) == 1
    assert cluster.pod_writes == 0
