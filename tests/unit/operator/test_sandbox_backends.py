"""What a run's sandboxes are made of: what the cluster has to prove, who says so, and what goes at the end."""

from typing import Any

import pytest

from gymtrain_api import names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_operator.manifests import broker
from gymtrain_operator.reconcile.observation import AgentSandbox
from gymtrain_operator.reconcile.sandbox_backend import PROBE_SECONDS
from tests.support.world import UID, World, applied, deleted

PROBE = "SandboxWarmPool/run-probe"


def _world(served: bool = True, **sandboxes: Any) -> World:
    world = World(sandboxes=sandboxes)
    world.seen["agent_sandbox"] = AgentSandbox(served=served)
    return world


def _answer(world: World, status: dict[str, Any]) -> None:
    """What the probe looks like from now on."""
    probe = world.objects["SandboxWarmPool"]["run-probe"] | {"status": status}
    world.seen["agent_sandbox"] = AgentSandbox(served=True, probe=probe)


def _said(world: World) -> str:
    return world.condition(ConditionType.SANDBOXES_READY).message


def _backend(world: World) -> str:
    (container,) = world.objects["Deployment"]["run-broker"]["spec"]["template"]["spec"]["containers"]
    return str(next(one["value"] for one in container["env"] if one["name"] == "GYMTRAIN_SANDBOX_BACKEND"))


def _rights(world: World) -> dict[str, set[str]]:
    """The verbs that the broker's ServiceAccount has, by resource."""
    rights: dict[str, set[str]] = {}
    for binding in world.objects["RoleBinding"].values():
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": names.broker_identity("run", UID), "namespace": "ns"}
        ]
        for rule in world.objects["Role"][binding["roleRef"]["name"]]["rules"]:
            for resource in rule["resources"]:
                rights.setdefault(resource, set()).update(rule["verbs"])
    return rights


def test_without_agent_sandbox_auto_means_pods_and_says_so() -> None:
    world = _world(served=False).to_servers()
    assert _backend(world) == "Pod"
    world.reconcile()
    assert "Backend Pod: the cluster does not serve SandboxClaim" in _said(world)


def test_agent_sandbox_is_taken_once_its_controller_has_answered() -> None:
    world = _world().to_servers()
    assert PROBE.split("/")[1] in world.objects["SandboxWarmPool"]
    assert "run-broker" not in world.objects["Deployment"]
    assert "has not answered yet" in _said(world)
    _answer(world, {"observedGeneration": 1})
    world.reconcile(1)
    assert _backend(world) == "AgentSandbox"
    world.servers_ready()
    world.reconcile(1)
    assert _said(world).endswith("Backend AgentSandbox: agent-sandbox's controller answers")


def test_kinds_without_a_controller_are_no_reason_to_wait_for_long() -> None:
    world = _world().to_servers()
    _answer(world, {})
    assert world.reconcile(PROBE_SECONDS - 1).requeue_after == 1.0
    assert "run-broker" not in world.objects["Deployment"]
    world.reconcile(2)
    assert _backend(world) == "Pod"
    world.reconcile(1)
    assert "without a status" in _said(world)


def test_who_demands_agent_sandbox_waits_for_its_controller_and_reads_how_to_start_it() -> None:
    world = _world(backend="AgentSandbox").to_servers()
    _answer(world, {})
    world.reconcile(PROBE_SECONDS + 1)
    assert "run-broker" not in world.objects["Deployment"]
    assert "controller.extensions=true" in _said(world)
    assert "backend: Pod" in world.condition(ConditionType.PROGRESSING).message


def test_pools_that_are_reused_in_place_need_pods() -> None:
    world = _world(warmPools=[{"image": "a:1", "reuse": "Restart"}]).to_servers()
    assert _backend(world) == "Pod"
    world.reconcile()
    assert "reuse: Restart" in _said(world)


def test_pods_that_are_asked_for_need_no_probe() -> None:
    world = _world(backend="Pod").to_servers()
    assert _backend(world) == "Pod"
    assert "SandboxWarmPool" not in world.objects


def test_a_choice_stands_while_the_broker_does() -> None:
    world = _world().to_servers()
    _answer(world, {"observedGeneration": 1})
    world.reconcile(1)
    world.seen["agent_sandbox"] = None
    world.change(sandboxes={"maxConcurrent": 7, "warmPools": [{"image": "a:1", "reuse": "Restart"}]})
    assert "Deployment/run-broker" in applied(world.reconcile(1))
    assert _backend(world) == "AgentSandbox"
    assert "reuse: Restart of a warm pool is ignored" in _said(world)


@pytest.mark.parametrize("backend", ["Pod", "AgentSandbox"])
def test_the_broker_has_the_rights_of_its_backend_alone(backend: str) -> None:
    world = _world(backend=backend).to_servers()
    if backend == "AgentSandbox":
        _answer(world, {"observedGeneration": 1})
        world.reconcile(1)
    rights = _rights(world)
    every = {"get", "list", "watch", "create", "patch", "delete"}
    if backend == "Pod":
        assert rights == {"pods": every}
    else:
        assert rights == {
            "pods": {"get", "list", "watch"},
            "sandboxclaims": every,
            "sandboxtemplates": {"create", "delete"},
            "sandboxwarmpools": {"list", "create", "delete"},
        }


def test_a_run_that_resumes_with_another_backend_has_the_rights_for_it() -> None:
    world = _world(served=False).to_servers()
    world.change(suspend=True)
    world.reconcile(5)
    assert "run-broker" not in world.objects["Deployment"]
    world.seen["agent_sandbox"] = AgentSandbox(served=True, probe={"status": {"observedGeneration": 1}})
    world.change(suspend=False)
    world.reconcile(5)
    assert _backend(world) == "AgentSandbox"
    assert {"sandboxclaims", "sandboxtemplates", "sandboxwarmpools"} <= set(_rights(world))


def test_a_broker_of_a_later_release_has_the_rights_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world(served=False).to_training()
    rules = [{"apiGroups": [""], "resources": ["pods", "pods/resize"], "verbs": ["get", "patch"]}]
    monkeypatch.setattr(broker, "_rules", lambda backend: rules)
    assert applied(world.reconcile(5)) == [], "the broker that runs is of the release before"
    world.change(sandboxes={"maxConcurrent": 7})
    written = applied(world.reconcile(5))
    assert "pods/resize" in _rights(world)
    assert [name.split("/")[0] for name in written][-1] == "Deployment", "its rights come first"


def test_the_end_sweeps_claims_with_their_pods_and_what_they_were_made_from() -> None:
    world = _world().to_servers()
    _answer(world, {"observedGeneration": 1})
    world.reconcile(1)
    world.change(suspend=True)
    for kind, name in (("SandboxClaim", "run-sb-1"), ("SandboxTemplate", "run-shape-1")):
        world.objects[kind] = {name: {"kind": kind, "metadata": {"name": name, "uid": name}}}
    done = world.reconcile(5)
    assert {"SandboxClaim/run-sb-1", "SandboxTemplate/run-shape-1", PROBE} <= set(deleted(done))
    assert [one.foreground for one in done.delete if one.kind == "SandboxClaim"] == [True]
    assert done.requeue_after == 2.0
    assert world.condition(ConditionType.SANDBOXES_READY).reason == Reason.SUSPENDED
