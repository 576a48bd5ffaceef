"""Who of a run reaches whom."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.labels import Role
from tests.support.policies import lets_in, lets_out
from tests.support.world import World

INNER = {Role.INFERENCE, Role.TRAINER}
OPEN = {Role.PREFLIGHT, Role.GYM, Role.GATEWAY}
MAY_REACH = {
    **{role: {Role.GATEWAY, *INNER, Role.INFERENCE_WORKER} for role in INNER},
    Role.INFERENCE_WORKER: {*INNER, Role.INFERENCE_WORKER},
    **{role: set(Role) - {Role.SANDBOX} for role in OPEN},
    Role.BROKER: {Role.GYM, Role.TRAINER},
    Role.SANDBOX: {Role.GYM, Role.BROKER},
}


def _with_sandboxes(**network: Any) -> list[dict[str, Any]]:
    world = World(sandboxes={"network": network} if network else {})
    return list(world.to_servers().objects["NetworkPolicy"].values())


@pytest.mark.parametrize("source", list(Role))
@pytest.mark.parametrize("target", list(Role))
def test_each_part_is_reached_by_those_that_need_it_and_sandboxes_reach_nothing(source: Role, target: Role) -> None:
    expected = source in MAY_REACH[target]
    world = World(sandboxes={}, inference={"nodes": 2}).to_servers()
    policies = list(world.objects["NetworkPolicy"].values())
    assert lets_in(policies, labels.run_labels("run", source), labels.run_labels("run", target)) is expected


def test_only_the_daemon_of_a_sandbox_can_be_reached() -> None:
    fence = next(p for p in _with_sandboxes() if p["metadata"]["name"] == "run-sandboxes")
    assert fence["spec"]["ingress"][0]["ports"] == [{"port": 8787, "protocol": "TCP"}]


def test_closed_sandboxes_may_not_send_anything_out() -> None:
    fence = next(p for p in _with_sandboxes() if p["metadata"]["name"] == "run-sandboxes")
    assert fence["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert fence["spec"]["egress"] == []


def test_egress_opens_what_the_spec_names_and_dns_and_no_more() -> None:
    policies = _with_sandboxes(mode="EgressAllowed", cidrs=["10.9.0.0/16"], ports=[443])
    fence = next(p for p in policies if p["metadata"]["name"] == "run-sandboxes")
    assert fence["spec"]["egress"] == [
        {
            "to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}],
            "ports": [{"port": 443, "protocol": "TCP"}],
        },
        {
            "to": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                }
            ],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        },
    ]


@pytest.mark.parametrize(
    ("cidr", "left_out"),
    [
        ("0.0.0.0/0", ["100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16"]),
        ("160.0.0.0/4", ["168.63.129.16/32", "169.254.0.0/16"]),
        ("::/0", ["fd00:ec2::/32", "fd20:ce::254/128"]),
        ("10.0.0.0/8", None),
        ("fd20:ce::/64", ["fd20:ce::254/128"]),
        ("169.254.0.0/16", None),
        ("169.254.169.254/32", None),
    ],
)
def test_a_wide_range_opens_no_metadata_service_unless_that_is_named(cidr: str, left_out: list[str] | None) -> None:
    policies = _with_sandboxes(mode="EgressAllowed", cidrs=[cidr])
    fence = next(p for p in policies if p["metadata"]["name"] == "run-sandboxes")
    block = fence["spec"]["egress"][0]["to"][0]["ipBlock"]
    assert (block["cidr"], block.get("except")) == (cidr, left_out)


@pytest.mark.parametrize("target", list(Role))
def test_pods_of_another_run_reach_nothing(target: Role) -> None:
    policies = _with_sandboxes()
    stranger = labels.run_labels("other", Role.TRAINER)
    assert not lets_in(policies, stranger, labels.run_labels("run", target))


def test_the_operator_is_let_in_everywhere_but_in_sandboxes() -> None:
    policies = [policy for policy in _with_sandboxes() if policy["metadata"]["name"] != "run-sandboxes"]
    assert len(policies) == 3
    for policy in policies:
        peers = policy["spec"]["ingress"][0]["from"]
        assert peers[-1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "gymtrain-system"}


def test_the_fences_stand_before_any_pod() -> None:
    world = World()
    done = world.reconcile()
    kinds = [manifest["kind"] for manifest in done.apply]
    assert kinds.count("NetworkPolicy") == 2
    assert kinds.index("Pod") > max(n for n, kind in enumerate(kinds) if kind == "NetworkPolicy")


@pytest.mark.parametrize("role", [Role.GYM, Role.PREFLIGHT])
def test_others_code_reaches_the_network_but_no_metadata_service(role: Role) -> None:
    pod = labels.run_labels("run", role)
    policies = _with_sandboxes()
    reached = {
        address: lets_out(policies, pod, address, port)
        for address, port in (
            ("93.184.215.14", 443),  # a judge
            ("10.96.0.10", 53),
            ("169.254.20.10", 53),  # NodeLocal DNSCache
            ("2606:2800:21f::1", 443),
            ("169.254.169.254", 80),
            ("168.63.129.16", 80),
            ("100.100.100.200", 80),
            ("fd00:ec2::254", 80),
            ("fd20:ce::254", 80),
        )
    }
    assert [address for address, open_ in reached.items() if open_] == [
        "93.184.215.14",
        "10.96.0.10",
        "169.254.20.10",
        "2606:2800:21f::1",
    ]
