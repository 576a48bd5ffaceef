"""A sandbox that breaks says why, in words that help, and leaves nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from gymtrain_api.sandboxes import SandboxState
from tests.support.fake_pods import FakeCluster, refusal
from tests.unit.broker.conftest import Bench, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")


async def _failed(bench: Bench, cluster: FakeCluster, break_it: Callable[[str], None]) -> Any:
    """What becomes of a running sandbox."""
    _, found = await bench.ask()
    break_it(found["podName"])
    after = await bench.until_state(found["id"], SandboxState.FAILED)
    await bench.until(lambda: found["podName"] not in cluster.pods)
    assert after["url"] is None
    return after


async def test_out_of_memory(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    after = await _failed(bench, cluster, lambda pod: cluster.end_container(pod, "OOMKilled", 137))
    assert after["reason"] == "OOMKilled"
    assert "resources.memoryMiB" in after["message"]


async def test_eviction(start: Start, cluster: FakeCluster) -> None:
    def evict(pod: str) -> None:
        status = {"phase": "Failed", "reason": "Evicted", "message": "low on resource: ephemeral-storage"}
        cluster.update(pod, lambda one: one["status"].update(status))

    after = await _failed(await start(), cluster, evict)
    assert after["reason"] == "Evicted"
    assert "low on resource: ephemeral-storage" in after["message"]


async def test_an_eviction_whose_end_the_kubelet_did_not_see_is_still_one(start: Start, cluster: FakeCluster) -> None:
    """The kubelet counts a restart then, though nothing was started."""
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown"}

    def evict(pod: str) -> None:
        def change(one: dict[str, Any]) -> None:
            one["status"].update({"phase": "Failed", "reason": "Evicted", "message": "too much ephemeral-storage"})
            (container,) = one["status"]["containerStatuses"]
            container.update({"restartCount": 1, "lastState": {"terminated": lost}, "state": {"terminated": lost}})

        cluster.update(pod, change)

    after = await _failed(await start(), cluster, evict)
    assert after["reason"] == "Evicted"
    assert "too much ephemeral-storage" in after["message"]


@pytest.mark.parametrize(
    ("code", "said", "told", "fix"),
    [
        (80, "/dev/termination-log took 3 MiB", "/dev/termination-log took 3 MiB", "write elsewhere"),
        (80, "", "a file that is mounted from the node", "write elsewhere"),
        (
            81,
            "the volumes of its image (/data) took more than 1 GiB",
            "(/data) took more than 1 GiB",
            "resources.diskGiB",
        ),
        (81, "two\nlines\x1b", "count: two lines;", "spec.sandboxes.resources.limits"),
    ],
    ids=["a file", "a file, no message", "volumes", "control characters"],
)
async def test_disk_that_the_kubelet_does_not_count(
    start: Start, cluster: FakeCluster, code: int, said: str, told: str, fix: str
) -> None:
    after = await _failed(await start(), cluster, lambda pod: cluster.end_container(pod, "Error", code, said))
    assert after["reason"] == "UncountedDisk"
    assert told in after["message"]
    assert fix in after["message"]


@pytest.mark.backend("Pod")
async def test_a_reusable_one_that_filled_the_disk_says_so_and_is_not_used_again(
    start: Start, cluster: FakeCluster
) -> None:
    bench = await start(warmPools=[{"image": "task:1", "reuse": "Restart"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    cluster.restart_container(found["podName"], "Error", 81, "the volumes took more than 1 GiB")
    after = await bench.until_state(found["id"], SandboxState.FAILED)
    assert (after["reason"], "took more than 1 GiB" in after["message"]) == ("UncountedDisk", True)
    await bench.until(lambda: found["podName"] not in cluster.pods)


async def test_a_daemon_that_ends_ends_the_sandbox(start: Start, cluster: FakeCluster) -> None:
    after = await _failed(await start(), cluster, lambda pod: cluster.end_container(pod, "Error", 2))
    assert after["reason"] == "Exited"
    assert "exit code 2" in after["message"]


@pytest.mark.backend("Pod")
async def test_a_container_that_was_restarted_is_another_sandbox(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1", "reuse": "Restart"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    cluster.restart_container(found["podName"], "Error", 1)
    after = await bench.until_state(found["id"], SandboxState.FAILED)
    assert after["reason"] == "Restarted"
    assert "its contents are lost" in after["message"]


@pytest.mark.backend("Pod")
async def test_out_of_memory_of_a_reusable_one_says_so_too(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1", "reuse": "Restart"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    cluster.restart_container(found["podName"], "OOMKilled", 137)
    assert (await bench.until_state(found["id"], SandboxState.FAILED))["reason"] == "OOMKilled"


async def test_somebody_deletes_the_pod(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    after = await _failed(bench, cluster, cluster.remove)
    assert after["reason"] == "PodDeleted"


async def test_the_cluster_takes_the_node_away(start: Start, cluster: FakeCluster) -> None:
    def drain(pod: str) -> None:
        def change(one: dict[str, Any]) -> None:
            one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            disruption = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "m",
            }
            one["status"]["conditions"].append(disruption)

        cluster.update(pod, change)

    bench = await start()
    _, found = await bench.ask()
    drain(found["podName"])
    after = await bench.until_state(found["id"], SandboxState.FAILED)
    assert (after["reason"], "EvictionByEvictionAPI" in after["message"]) == ("PodDeleted", True)


@pytest.mark.parametrize("said", ["manifest unknown: not found", "pull access denied", "401 unauthorized"])
async def test_an_image_that_does_not_exist_fails_at_once(start: Start, cluster: FakeCluster, said: str) -> None:
    cluster.images["task:1"] = ("ErrImagePull", f"rpc error: {said}")
    bench = await start()
    status, found = await bench.ask()
    assert (status, found["state"], found["reason"]) == (200, "Failed", "ErrImagePull")
    assert said in found["message"]
    assert "imagePullSecrets" in found["message"]
    await bench.until(lambda: not cluster.pods)


async def test_a_pull_that_may_still_succeed_is_waited_for(start: Start, cluster: FakeCluster) -> None:
    cluster.images["task:1"] = ("ImagePullBackOff", "Back-off pulling image: 429 Too Many Requests")
    bench = await start()
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: any("containerStatuses" in pod["status"] for pod in cluster.pods.values()))
    await bench.until(lambda: bench.process.broker.document(bench.process.broker.find(asked["id"])).reason)
    starting = await bench.get(asked["id"])
    assert (starting["state"], starting["reason"]) == ("Starting", "ImagePullBackOff")
    assert "429" in starting["message"]
    cluster.images.clear()
    cluster.retry()
    assert (await bench.get(asked["id"], wait=5))["state"] == "Running"


async def test_a_pull_that_never_succeeds_ends_with_what_the_kubelet_said(start: Start, cluster: FakeCluster) -> None:
    cluster.images["task:1"] = ("ImagePullBackOff", "dial tcp: i/o timeout")
    bench = await start()
    status, found = await bench.ask(timeoutSeconds=0.3)
    assert (status, found["reason"]) == (504, "Deadline")
    assert "i/o timeout" in found["message"]


async def test_a_pull_that_says_nothing_in_time_ends_with_the_image_it_waited_for(
    start: Start, cluster: FakeCluster
) -> None:
    cluster.starts = False
    bench = await start()
    status, found = await bench.ask(timeoutSeconds=0.3)
    assert (status, found["reason"]) == (504, "Deadline")
    assert "its image task:1 may still be pulling" in found["message"]


async def test_a_node_that_can_t_make_the_pod_is_told_from_a_slow_image(start: Start, cluster: FakeCluster) -> None:
    """What a kubelet shows of `hostUsers: false` where the runtime has no user namespaces."""
    cluster.starts = False
    bench = await start(root=True, hostUsers=False)
    _, asked = await bench.ask(wait=0, timeoutSeconds=0.4)
    await bench.until(lambda: cluster.pods)
    (name,) = cluster.pods
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "PodReadyToStartContainers", "status": "False"}]
    waiting = [{"name": "sandbox", "state": {"waiting": {"reason": "PodInitializing"}}}]
    cluster.update(name, lambda pod: pod["status"].update(conditions=conditions, containerStatuses=waiting))
    found = await bench.get(asked["id"], wait=5)
    assert found["reason"] == "Deadline"
    assert f"kubectl describe pod {name}" in found["message"]
    assert "hostUsers: false" in found["message"]
    assert "image" not in found["message"]


async def test_no_room_is_said_while_it_waits_and_when_it_gives_up(start: Start, cluster: FakeCluster) -> None:
    cluster.full = True
    bench = await start()
    _, asked = await bench.ask(wait=0, timeoutSeconds=0.4)
    await bench.until(lambda: bench.process.broker.document(bench.process.broker.find(asked["id"])).reason)
    assert (await bench.get(asked["id"]))["reason"] == "Unschedulable"
    found = await bench.get(asked["id"], wait=5)
    assert (found["reason"], "0/1 nodes" in found["message"]) == ("Deadline", True)


async def test_a_container_that_can_t_be_made_fails_at_once(start: Start, cluster: FakeCluster) -> None:
    cluster.images["task:1"] = ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
    status, found = await (await start()).ask()
    assert (status, found["reason"]) == (200, "CreateContainerConfigError")
    assert "spec.sandboxes.root" in found["message"]


async def test_a_daemon_that_can_t_be_put_in_fails_at_once(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: cluster.pods)
    ended = {"name": "sandboxd", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no space"}}}
    cluster.update(next(iter(cluster.pods)), lambda pod: pod["status"].update(initContainerStatuses=[ended]))
    found = await bench.get(asked["id"], wait=5)
    assert (found["reason"], "no space" in found["message"]) == ("DaemonNotInstalled", True)


async def test_a_last_message_can_forge_neither_a_line_of_the_log_nor_a_reason(
    start: Start, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A sandbox writes its termination message itself."""
    caplog.set_level("INFO")
    forged = '\n2026-01-01 WARNING all is lost\r\x1b[2K"/gymtrain/gymtrain-sandboxd": no such file'
    ended = {"name": "sandbox", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": forged}}}
    bench = await start()
    after = await _failed(
        bench,
        cluster,
        lambda pod: cluster.update(pod, lambda it: it["status"].update(phase="Failed", containerStatuses=[ended])),
    )
    assert after["reason"] == "Exited"
    lines = [record.getMessage() for record in caplog.records if "all is lost" in record.getMessage()]
    assert lines
    assert all(line.isprintable() for line in (*lines, after["message"]))


@pytest.mark.backend("Pod")
async def test_a_cluster_without_image_volumes_is_told_from_a_task_that_ended(
    start: Start, cluster: FakeCluster
) -> None:
    """What an API server without them makes of the volume is an empty folder; these are the words of runc."""
    words = 'exec: "/gymtrain/gymtrain-sandboxd": stat /gymtrain/gymtrain-sandboxd: no such file or directory: unknown'
    cluster.starts = False
    bench = await start()
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: cluster.pods)
    (name,) = cluster.pods
    ended = {"name": "sandbox", "state": {"terminated": {"exitCode": 128, "reason": "StartError", "message": words}}}
    cluster.update(name, lambda pod: pod["status"].update(phase="Failed", containerStatuses=[ended]))
    found = await bench.get(asked["id"], wait=5)
    assert (found["state"], found["reason"]) == ("Failed", "DaemonNotInstalled")
    assert "no such file" in found["message"]
    assert "sandboxes.imageVolumes" in found["message"]


@pytest.mark.backend("Pod")
async def test_a_node_without_image_volumes_is_waited_for_and_told(start: Start, cluster: FakeCluster) -> None:
    """These are the words of containerd 1.6."""
    cluster.starts = False
    bench = await start()
    _, asked = await bench.ask(wait=0, timeoutSeconds=0.4)
    await bench.until(lambda: cluster.pods)
    (name,) = cluster.pods
    volumes = [{"name": "gymtrain", "image": {"reference": "r/sandbox:1"}}]
    cluster.update(name, lambda pod: pod["spec"].update(volumes=volumes))
    cluster.waiting(name, "CreateContainerError", 'failed to generate spec: failed to mkdir ""')
    found = await bench.get(asked["id"], wait=5)
    assert (found["state"], found["reason"]) == ("Failed", "Deadline")
    assert "failed to mkdir" in found["message"]
    assert "sandboxes.imageVolumes" in found["message"]


async def test_a_pod_that_the_api_server_refuses_can_never_be(start: Start, cluster: FakeCluster) -> None:
    cluster.refuse = lambda verb, _: _answer(422, "spec.nodeSelector: Invalid value") if verb == "POST" else None
    bench = await start()
    status, found = await bench.ask()
    assert (status, found["state"], found["reason"]) == (422, "Failed", "Rejected")
    assert "spec.nodeSelector" in found["message"]


async def test_a_field_that_no_pod_has_is_refused(start: Start, cluster: FakeCluster) -> None:
    """The API server drops it without a word, and refuses it only where it is asked to."""

    async def strict(request: web.Request) -> web.Response:
        if request.query.get("fieldValidation") == "Strict":
            return _answer(400, 'strict decoding error: unknown field "spec.nodeSelektor"')
        return await cluster.create(request)

    cluster.intercept = strict
    status, found = await (await start()).ask()
    assert (status, found["reason"]) == (422, "Rejected")
    assert "spec.nodeSelektor" in found["message"]


async def test_a_policy_that_forbids_the_pod_is_quoted(start: Start, cluster: FakeCluster) -> None:
    cluster.refuse = lambda verb, _: (
        _answer(403, 'violates PodSecurity "restricted:latest"') if verb == "POST" else None
    )
    status, found = await (await start()).ask()
    assert (status, found["reason"]) == (422, "Rejected")
    assert "PodSecurity" in found["message"]


async def test_a_quota_that_is_used_up_is_waited_for(start: Start, cluster: FakeCluster) -> None:
    left = [2]

    def refuse(verb: str, _: Any) -> web.Response | None:
        if verb != "POST" or not left[0]:
            return None
        left[0] -= 1
        return _answer(403, "pods is forbidden: exceeded quota: compute")

    cluster.refuse = refuse
    assert (await (await start()).ask())[0] == 201


async def test_a_quota_that_others_count_against_at_the_same_moment_is_asked_again(
    start: Start, cluster: FakeCluster
) -> None:
    """Its admission answers 409 then, as if the name were taken."""
    busy = 'Operation cannot be fulfilled on resourcequotas "compute": the object has been modified'
    answers = [refusal(409, busy, "Conflict") for _ in range(2)]
    cluster.refuse = lambda verb, _: answers.pop() if verb == "POST" and answers else None
    assert (await (await start()).ask())[0] == 201
    assert not answers


def _answer(status: int, message: str) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status)
