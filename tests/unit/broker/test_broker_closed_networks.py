"""A sandbox proves that it reaches nothing before anyone gets it."""

import pytest

from gymtrain_api.sandboxes import SandboxState
from gymtrain_api.spec import Sandboxes
from gymtrain_broker.settings import _kept_out
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Start

API = "10.96.0.1:443"
pytestmark = pytest.mark.backend("Pod", "AgentSandbox")


async def test_a_new_sandbox_is_handed_out_once_its_network_is_closed(start: Start, cluster: FakeCluster) -> None:
    cluster.reached = {API}
    bench = await start(kept_out=(API,))
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: cluster.reach_calls)
    found = await bench.get(asked["id"])
    assert (found["state"], found["token"]) == (SandboxState.STARTING, None)
    cluster.reached = set()
    await bench.until_state(asked["id"], SandboxState.RUNNING)


async def test_a_sandbox_whose_network_stays_open_is_never_handed_out_and_says_why(
    start: Start, cluster: FakeCluster
) -> None:
    cluster.reached = {API}
    bench = await start(kept_out=(API,), startTimeoutSeconds=1)
    _, asked = await bench.ask(wait=0)
    failed = await bench.until_state(asked["id"], SandboxState.FAILED)
    assert f"its network isn't closed: it reaches {API}" in failed["message"]
    assert "must enforce NetworkPolicies" in failed["message"]


async def test_a_daemon_that_does_not_say_what_it_reaches_proves_nothing(start: Start, cluster: FakeCluster) -> None:
    cluster.reached = None
    bench = await start(kept_out=(API,), startTimeoutSeconds=1)
    _, asked = await bench.ask(wait=0)
    failed = await bench.until_state(asked["id"], SandboxState.FAILED)
    assert "doesn't say what it reaches" in failed["message"]


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ({}, (API,)),
        ({"mode": "EgressAllowed", "cidrs": ["10.9.0.0/16"]}, (API,)),
        ({"mode": "EgressAllowed", "cidrs": ["10.0.0.0/8"], "ports": [80]}, (API,)),
        ({"mode": "EgressAllowed", "cidrs": ["fd00::/8", "10.0.0.0/8"]}, ()),
    ],
)
def test_sandboxes_are_asked_for_the_api_server_unless_the_spec_opens_it(
    monkeypatch: pytest.MonkeyPatch, network: dict[str, object], asked: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert _kept_out(Sandboxes.model_validate({"network": network})) == asked


def test_an_address_of_version_6_has_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    assert _kept_out(Sandboxes()) == ("[fd00::1]:443",)


def test_outside_of_a_cluster_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert _kept_out(Sandboxes()) == ()
