"""Images that are on the nodes before a sandbox needs them."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_broker.policy import image_pulls
from gymtrain_broker.policy.image_pulls import pre_pull_shape
from gymtrain_broker.policy.shapes import PodShapes
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Bench, Start, settings


def _images(cluster: FakeCluster) -> Counter[str]:
    return Counter(pod["spec"]["containers"][0]["image"] for pod in cluster.pods.values())


async def _announce(bench: Bench, *images: str) -> None:
    tasks = [{"image": image, "task": image} for image in images]
    assert (await bench.call("POST", "/v1/announce", {"tasks": tasks}))[0] == 200


def _made(bench: Bench) -> float:
    return bench.value("made_total", made_for="PrePull")


def _task_container(body: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in body["spec"]["containers"] if one["name"] == "sandbox")


async def test_images_of_the_spec_are_pulled_once_and_nothing_stays(start: Start, cluster: FakeCluster) -> None:
    bench = await start(prePull={"images": ["a:1", "b:1"]})
    await bench.until(lambda: _made(bench) == 2 and not cluster.pods)
    for _ in range(5):
        bench.process.controller.round()
    await asyncio.sleep(0.1)
    assert _made(bench) == 2
    assert bench.value("wasted_total", made_for="PrePull") == 0


async def test_a_rewritten_image_is_what_is_pulled(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    mirror = [{"from": "docker.io/library/", "to": "mirror.local/"}]
    bench = await start(prePull={"images": ["a:1"]}, imageRewrites=mirror)
    await bench.until(lambda: cluster.pods)
    assert _images(cluster) == {"mirror.local/a:1": 1}


def test_a_pod_that_pulls_takes_next_to_nothing() -> None:
    shapes = PodShapes(settings(resources={"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}, root=True))
    usual = shapes.of("a:1")
    light = pre_pull_shape(usual, 1)
    assert _task_container(light.body)["resources"] == {
        "requests": {"cpu": "1m", "memory": "16Mi", "ephemeral-storage": "1Mi"},
        "limits": {"memory": "4Gi", "ephemeral-storage": "20Gi"},
    }
    assert light.key != usual.key, "it serves no request"
    assert _task_container(usual.body)["resources"]["limits"]["cpu"] == "4", "the usual one stays as it is"


async def test_a_request_does_not_get_a_pod_that_pulls(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(prePull={"images": ["a:1"]})
    await bench.until(lambda: _made(bench) == 1)
    _, asked = await bench.ask("a:1", wait=0)
    await bench.until(lambda: len(cluster.pods) == 2)
    cluster.starts = True
    cluster.retry()
    found = await bench.get(asked["id"], wait=5)
    assert cluster.pods[found["podName"]]["metadata"]["annotations"][labels.SANDBOX_MADE_FOR] == "Claim"


async def test_an_image_that_a_sandbox_brought_is_not_pulled_again(start: Start, cluster: FakeCluster) -> None:
    bench = await start(prePull={"tasks": 1})
    await bench.ask("a:1")
    await _announce(bench, "a:1")
    await asyncio.sleep(0.1)
    assert _made(bench) == 0


async def test_images_of_tasks_after_those_of_the_look_ahead_are_pulled(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(lookAhead={"tasks": 1}, prePull={"tasks": 2, "maxPerRegistry": 9})
    await _announce(bench, "a:1", "b:1", "c:1", "d:1")
    await bench.until(lambda: len(cluster.pods) == 3)
    await asyncio.sleep(0.1)
    kinds = {
        pod["spec"]["containers"][0]["image"]: pod["metadata"]["annotations"][labels.SANDBOX_MADE_FOR]
        for pod in cluster.pods.values()
    }
    assert kinds == {"a:1": "LookAhead", "b:1": "PrePull", "c:1": "PrePull"}


async def test_no_more_at_once_than_a_registry_may_be_asked_for(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(prePull={"images": ["a:1", "b:1", "c:1", "ghcr.io/d:1"], "maxPerRegistry": 2})
    await bench.until(lambda: len(cluster.pods) == 3)
    await asyncio.sleep(0.1)
    assert _images(cluster) == {"a:1": 1, "b:1": 1, "ghcr.io/d:1": 1}
    cluster.starts = True
    cluster.retry()
    await bench.until(lambda: _made(bench) == 4 and not cluster.pods)


async def test_a_registry_that_answers_429_is_asked_again_later(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "_FIRST_SECONDS", 0.2)
    cluster.images["a:1"] = ("ErrImagePull", "429 Too Many Requests")
    bench = await start(prePull={"images": ["a:1"]})
    await bench.until(lambda: bench.value("pull_failures_total", reason="throttled") == 2)
    cluster.images.clear()
    await bench.until(lambda: bench.process.controller.state.pods == {} and _made(bench) >= 3)
    made = _made(bench)
    await asyncio.sleep(0.5)
    assert _made(bench) == made


async def test_an_image_for_many_nodes_stays_until_all_have_it(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(prePull={"images": ["a:1"], "nodes": 2})
    await bench.until(lambda: len(cluster.pods) == 2)
    first, second = cluster.pods
    for name in cluster.pods:
        (term,) = cluster.pods[name]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        wanted = term["labelSelector"]["matchLabels"].items()
        assert wanted <= cluster.pods[name]["metadata"]["labels"].items()
    cluster.run_pod(first)
    await asyncio.sleep(0.2)
    assert set(cluster.pods) == {first, second}
    cluster.run_pod(second)
    await bench.until(lambda: not cluster.pods)
    assert _made(bench) == 2


async def test_fewer_nodes_than_asked_for_are_enough(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(prePull={"images": ["a:1"], "nodes": 2})
    await bench.until(lambda: len(cluster.pods) == 2)
    first, second = cluster.pods
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    cluster.update(second, lambda pod: pod["status"].update(conditions=[unscheduled]))
    await asyncio.sleep(0.1)
    assert len(cluster.pods) == 2
    cluster.run_pod(first)
    await bench.until(lambda: not cluster.pods)
    await asyncio.sleep(0.1)
    assert _made(bench) == 2


async def test_a_pull_that_no_node_takes_holds_nothing_else_back(start: Start, cluster: FakeCluster) -> None:
    cluster.full = True
    bench = await start(prePull={"images": ["a:1"]}, lookAhead={"tasks": 1})
    await bench.until(lambda: any(pod.trouble for pod in bench.process.controller.state.pods.values()))
    cluster.full = False
    await _announce(bench, "b:1")
    await bench.until(lambda: bench.value("made_total", made_for="LookAhead") == 1)
