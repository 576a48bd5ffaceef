"""Pods that somebody else made with the labels of a sandbox."""

import pytest

from gymtrain_api import labels
from gymtrain_api.sandboxes import ENV_DAEMON_TOKEN_SHA256, sandbox_token, token_digest
from gymtrain_broker.objects import sandbox_pod
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Start, settings

pytestmark = pytest.mark.backend("Pod")


async def test_a_pod_that_only_looks_like_a_free_sandbox_is_never_leased(start: Start, cluster: FakeCluster) -> None:
    """Whoever may create pods could read what a model is asked, and answer for it."""
    bench = await start(warmPools=[{"image": "task:1", "replicas": 1}])
    await bench.until(lambda: len(bench.free_ready()) == 1)
    (own,) = bench.free_ready()
    look_alike = cluster.pods[own] | {
        "metadata": cluster.pods[own]["metadata"] | {"name": "look-alike", "uid": "theirs"}
    }
    cluster.put(look_alike)
    _, first = await bench.ask("task:1")
    assert first["podName"] == own
    _, second = await bench.ask("task:1")
    assert second["podName"] not in {own, "look-alike"}
    assert cluster.pods["look-alike"]["metadata"]["annotations"][labels.SANDBOX_CLAIM] == ""


async def test_a_restarted_broker_does_not_take_it_either(start: Start, cluster: FakeCluster) -> None:
    first = await start(warmPools=[{"image": "task:1", "replicas": 1}])
    await first.until(lambda: len(first.free_ready()) == 1)
    (own,) = first.free_ready()
    cluster.put(cluster.pods[own] | {"metadata": cluster.pods[own]["metadata"] | {"name": "look-alike"}})
    await first.stop()
    second = await start(warmPools=[{"image": "task:1", "replicas": 1}])
    await second.until(lambda: second.free_ready())
    assert "look-alike" not in second.process.controller.state.pods


def test_a_pod_proves_its_maker_by_the_digest_of_its_own_token() -> None:
    def pod(name: str, *digests: str) -> dict[str, object]:
        env = [{"name": ENV_DAEMON_TOKEN_SHA256, "value": digest} for digest in digests]
        return {"metadata": {"name": name}, "spec": {"containers": [{"name": "sandbox", "env": env}]}}

    own = token_digest(sandbox_token(settings().run_token, "a"))
    assert sandbox_pod.made_here(settings(), pod("a", own))
    assert not sandbox_pod.made_here(settings(), pod("b", own)), "of another pod"
    assert not sandbox_pod.made_here(settings(), pod("a", own, "theirs")), "the kubelet takes the last one"
    assert not sandbox_pod.made_here(settings(), pod("a"))
    assert not sandbox_pod.made_here(settings(), {"metadata": {"name": "a"}})
