"""Who of a run reaches whom."""

import pytest

from gymtrain_api import labels
from gymtrain_api.labels import Role
from tests.support.policies import lets_in
from tests.support.world import World

INNER = {Role.INFERENCE, Role.TRAINER}
MAY_REACH_INNER = {Role.GATEWAY, Role.INFERENCE, Role.TRAINER}


@pytest.mark.parametrize("source", list(Role))
@pytest.mark.parametrize("target", list(Role))
def test_gym_servers_reach_everything_of_the_run_but_vllm_and_the_trainer(source: Role, target: Role) -> None:
    policies = list(World().to_servers().objects["NetworkPolicy"].values())
    expected = target not in INNER or source in MAY_REACH_INNER
    assert lets_in(policies, labels.run_labels("run", source), labels.run_labels("run", target)) is expected


@pytest.mark.parametrize("target", list(Role))
def test_pods_of_another_run_reach_nothing(target: Role) -> None:
    policies = list(World().to_servers().objects["NetworkPolicy"].values())
    stranger = labels.run_labels("other", Role.TRAINER)
    assert not lets_in(policies, stranger, labels.run_labels("run", target))


def test_the_operator_is_let_in_everywhere() -> None:
    for policy in World().to_servers().objects["NetworkPolicy"].values():
        peers = policy["spec"]["ingress"][0]["from"]
        assert peers[-1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "gymtrain-system"}


def test_the_fences_stand_before_any_pod() -> None:
    world = World()
    done = world.reconcile()
    kinds = [manifest["kind"] for manifest in done.apply]
    assert kinds.count("NetworkPolicy") == 2
    assert kinds.index("Pod") > max(n for n, kind in enumerate(kinds) if kind == "NetworkPolicy")
