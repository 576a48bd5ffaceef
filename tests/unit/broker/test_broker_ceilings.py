"""What an environment may ask for its sandboxes."""

import pytest

from gymtrain_api.sandboxes import SandboxResources
from gymtrain_api.spec.sandboxes import MaxResources
from gymtrain_broker import environment
from gymtrain_broker.errors import StartError
from gymtrain_broker.objects.quantities import above, ceilings
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Start


async def test_a_request_above_the_ceiling_is_refused_with_what_to_do(start: Start, cluster: FakeCluster) -> None:
    bench = await start(maxResources={"memory": "32Gi"})
    status, answer = await bench.ask(resources={"memoryMiB": 9_999_999})
    assert status == 422
    assert "memory 9999999Mi (at most 32Gi)" in answer["message"]
    assert "spec.sandboxes.maxResources" in answer["message"]
    assert not cluster.pods


async def test_a_request_up_to_the_ceiling_is_served(start: Start) -> None:
    bench = await start(maxResources={"memory": "32Gi"})
    status, _ = await bench.ask(resources={"memoryMiB": 32 * 1024})
    assert status == 201


async def test_nothing_is_made_ahead_for_a_task_that_asks_for_too_much(start: Start, cluster: FakeCluster) -> None:
    bench = await start(maxResources={"cpu": 2}, lookAhead={"tasks": 4})
    status, answer = await bench.call(
        "POST", "/v1/announce", {"tasks": [{"image": "a:1", "resources": {"cpu": 3}}, {"image": "b:1"}]}
    )
    assert (status, answer) == (200, {"accepted": 2, "ahead": 1})
    await bench.until(lambda: bool(cluster.pods))
    images = {pod["spec"]["containers"][0]["image"] for pod in cluster.pods.values()}
    assert images == {"b:1"}


@pytest.mark.parametrize(
    ("cluster_has", "spec", "most"),
    [
        ({}, {}, {}),
        ({"memory": "64Gi"}, {}, {"memory": "64Gi"}),
        ({"memory": "64Gi"}, {"memory": "8Gi"}, {"memory": "8Gi"}),
        ({"memory": "8Gi"}, {"memory": "64Gi"}, {"memory": "8Gi"}),
        ({}, {"cpu": 2, "ephemeralStorage": "1Gi"}, {"cpu": "2.0", "ephemeral-storage": "20Gi"}),
    ],
)
def test_the_lower_ceiling_counts_but_no_less_than_the_runs_own_limits(
    cluster_has: dict[str, str], spec: dict[str, object], most: dict[str, str]
) -> None:
    limits = {"memory": "4Gi", "ephemeral-storage": "20Gi"}
    assert ceilings(cluster_has, MaxResources.model_validate(spec), limits) == most


def test_what_has_no_ceiling_has_no_end() -> None:
    asked = SandboxResources(cpu=512, memory_mib=1024, disk_gib=10)
    assert above(asked, {}) == []
    assert above(asked, {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "9Gi"}) == [
        "cpu 512000m (at most 500m)",
        "ephemeral-storage 10240Mi (at most 9Gi)",
    ]
    assert above(None, {"cpu": "1"}) == []


def test_the_clusters_ceilings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMTRAIN_SANDBOX_MAX_RESOURCES", "cpu=8,memory=32Gi")
    assert environment.max_resources() == {"cpu": "8", "memory": "32Gi"}
    monkeypatch.setenv("GYMTRAIN_SANDBOX_MAX_RESOURCES", "cpu=lots")
    with pytest.raises(StartError, match="must be as"):
        environment.max_resources()
    monkeypatch.delenv("GYMTRAIN_SANDBOX_MAX_RESOURCES")
    assert environment.max_resources() == {}
