"""All pods to one version, whatever their state."""

import asyncio
from typing import Any

import pytest

from gymtrain_trainer.weights.errors import NoServersError, WeightSyncError


async def test_every_pod_gets_the_version(cluster: Any) -> None:
    pods = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2, 3)]
    outcome = await cluster.fleet.bring(cluster.stage(1), 5.0)
    assert [pod.version for pod in pods] == ["demo:1:1"] * 3
    assert len(outcome.done) == 3


async def test_a_pod_that_does_not_answer_is_not_waited_for_while_another_does(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    cluster.addresses.append("127.0.0.9")  # in DNS, not listening: it starts
    outcome = await asyncio.wait_for(cluster.fleet.bring(cluster.stage(1), 600.0), 60.0)
    assert [pod.url.split(":")[1] for pod in outcome.unreachable] == ["//127.0.0.9"]


async def test_the_only_pod_is_waited_for_while_it_restarts(cluster: Any) -> None:
    cluster.addresses.append("127.0.0.1")
    sync = asyncio.create_task(cluster.fleet.bring(cluster.stage(1), 10.0))
    await asyncio.sleep(0.2)
    pod = await cluster.start_pod("127.0.0.1")
    await sync
    assert pod.version == "demo:1:1"


async def test_a_pod_whose_engine_died_is_not_waited_for_while_another_takes_the_weights(cluster: Any) -> None:
    well, dead = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    dead.engine_died = True
    outcome = await asyncio.wait_for(cluster.fleet.bring(cluster.stage(1), 600.0), 60.0)
    assert well.version == "demo:1:1"
    assert ["/health: HTTP 503" in text for text in outcome.unreachable.values()] == [True]
    assert not dead.loaded


async def test_an_engine_that_dies_of_a_push_does_not_end_the_sync_of_the_others(cluster: Any) -> None:
    well, dying = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]

    async def dies(_: dict[str, Any]) -> tuple[int, Any]:
        dying.engine_died = True
        return 500, {"error": "EngineCore encountered an issue"}

    dying.do_update_weights = dies
    await asyncio.wait_for(cluster.fleet.bring(cluster.stage(1), 600.0), 60.0)
    assert well.version == "demo:1:1"


async def test_the_only_pod_is_waited_for_until_its_engine_is_back(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.engine_died = True
    sync = asyncio.create_task(cluster.fleet.bring(cluster.stage(1), 10.0))
    async with asyncio.timeout(60):
        while pod.calls.count("/health") < 5:  # noqa: ASYNC110 - the pod has no event to wait for
            await asyncio.sleep(0.001)
    pod.engine_died = False
    await sync
    assert pod.version == "demo:1:1"


async def test_no_engine_before_the_deadline_says_that_no_pod_took_the_weights(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.engine_died = True
    with pytest.raises(NoServersError, match="/health: HTTP 503"):
        await cluster.fleet.bring(cluster.stage(1), 0.1)


async def test_a_pod_that_refuses_once_is_tried_again(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.fail_updates = 2
    outcome = await cluster.fleet.bring(cluster.stage(1), 10.0)
    assert pod.version == "demo:1:1"
    assert outcome.retries == 2


async def test_a_pod_that_goes_on_refusing_ends_the_sync_with_its_words(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    bad = await cluster.start_pod("127.0.0.2")
    bad.fail_updates = 99
    with pytest.raises(WeightSyncError, match=r"127\.0\.0\.2.*something broke"):
        await cluster.fleet.bring(cluster.stage(1), 10.0)


async def test_weights_that_do_not_fit_the_model_are_not_tried_again(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.fail_updates = 99
    pod.update_error = "LoadError: version demo:1:1 doesn't fit the model: no weights arrived for lm_head.weight"
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight"):
        await cluster.fleet.bring(cluster.stage(1), 10.0)
    assert pod.calls.count("/update_weights") == 1


async def test_a_pod_that_left_dns_while_it_failed_is_forgotten(cluster: Any) -> None:
    leaving = await cluster.start_pod("127.0.0.1")
    leaving.fail_updates = 99
    staying = await cluster.start_pod("127.0.0.2")
    sync = asyncio.create_task(cluster.fleet.bring(cluster.stage(1), 10.0))
    while not leaving.calls:  # noqa: ASYNC110 - the pod has no event to wait for
        await asyncio.sleep(0.001)
    cluster.addresses.remove("127.0.0.1")
    await sync
    assert staying.version == "demo:1:1"


async def test_no_pod_before_the_deadline_says_what_was_seen(cluster: Any) -> None:
    with pytest.raises(NoServersError, match="demo-inference-pods has no address"):
        await cluster.fleet.bring(cluster.stage(1), 0.1)


async def test_repair_brings_a_restarted_pod_back_and_leaves_the_others_alone(cluster: Any) -> None:
    good = await cluster.start_pod("127.0.0.1")
    restarted = await cluster.start_pod("127.0.0.2")
    version = cluster.stage(1)
    await cluster.fleet.bring(version, 5.0)
    restarted.version = "default"
    await cluster.fleet.repair(version, 5.0)
    assert restarted.version == "demo:1:1"
    assert good.loaded == ["demo:1:1"]


async def test_repair_resumes_a_pod_that_was_left_paused(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    version = cluster.stage(1)
    await cluster.fleet.bring(version, 5.0)
    pod.paused = True
    await cluster.fleet.repair(version, 5.0)
    assert not pod.paused


async def test_repair_reports_a_pod_that_it_cannot_mend(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    version = cluster.stage(1)
    await cluster.fleet.bring(version, 5.0)
    pod.version, pod.fail_updates = "default", 1
    _, errors = await cluster.fleet.repair(version, 5.0)
    assert ["something broke" in text for text in errors.values()] == [True]


async def test_a_release_that_cannot_say_its_version_is_known_by_what_was_pushed(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.knows_version = False
    await cluster.fleet.bring(cluster.stage(1), 5.0)
    assert list((await cluster.fleet.versions()).values()) == ["demo:1:1"]


async def test_an_answer_from_before_a_push_does_not_count_after_it(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    asked, pushed = asyncio.Event(), asyncio.Event()
    answer = pod.do_weight_info

    async def late(body: dict[str, Any]) -> tuple[int, Any]:
        found: tuple[int, Any] = await answer(body)
        asked.set()
        await pushed.wait()
        return found

    pod.do_weight_info = late
    look = asyncio.create_task(cluster.fleet.versions())
    await asked.wait()
    await cluster.fleet.bring(cluster.stage(1), 5.0)
    pushed.set()
    await look
    assert list(cluster.fleet.known.values()) == ["demo:1:1"]
