"""Who of a run reaches whom."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.defaults import parse
from gymtrain_api.labels import Role
from gymtrain_operator.manifests.scrapers import ROLES, Scrapers
from tests.support.policies import lets_in, lets_out
from tests.support.world import DEFAULTS, World

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
    named, dns = fence["spec"]["egress"]
    assert named == {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {
        (53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP"),
    }  # fmt: skip
    kube, openshift, node = dns["to"]
    assert kube["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    (labelled,) = kube["podSelector"]["matchExpressions"]
    assert (labelled["key"], labelled["operator"]) == ("k8s-app", "In")
    assert openshift["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}
    assert node == {"ipBlock": {"cidr": "169.254.20.10/32"}}


@pytest.mark.parametrize(
    ("dns", "rule"),
    [
        (
            {"namespace": "dns", "podLabels": {"app": "bind"}, "ports": [5300]},
            {
                "to": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dns"}},
                        "podSelector": {"matchLabels": {"app": "bind"}},
                    }
                ],
                "ports": [{"port": 5300, "protocol": "UDP"}, {"port": 5300, "protocol": "TCP"}],
            },
        ),
        (
            {"cidrs": ["169.254.169.254/32"]},
            {
                "to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}],
                "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
            },
        ),
    ],
)
def test_name_servers_are_where_the_clusters_defaults_say(dns: dict[str, Any], rule: dict[str, Any]) -> None:
    world = World(sandboxes={"network": {"mode": "EgressAllowed", "cidrs": ["10.9.0.0/16"]}})
    world.defaults = replace(DEFAULTS, cluster=parse({"dns": dns}, "defaults"))
    policies = world.to_servers().objects["NetworkPolicy"]
    assert policies["run-sandboxes"]["spec"]["egress"][1] == rule


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
    assert len(policies) == 4
    for policy in policies:
        peers = policy["spec"]["ingress"][0]["from"]
        assert peers[-1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "gymtrain-system"}


def test_the_fences_stand_before_any_pod() -> None:
    world = World()
    done = world.reconcile()
    kinds = [manifest["kind"] for manifest in done.apply]
    assert kinds.count("NetworkPolicy") == 3
    assert kinds.index("Pod") > max(n for n, kind in enumerate(kinds) if kind == "NetworkPolicy")


def _reached(**egress: Any) -> list[str]:
    world = World(gym={"configPaths": ["a.yaml"], **({"egress": egress} if egress else {})}).to_servers()
    pod = labels.run_labels("run", Role.GYM)
    addresses = (
        ("93.184.215.14", 443),
        ("93.184.215.14", 80),
        ("10.96.0.1", 443),
        ("10.96.0.10", 53),
        ("169.254.169.254", 80),
    )
    policies = list(world.objects["NetworkPolicy"].values())
    return [f"{address}:{port}" for address, port in addresses if lets_out(policies, pod, address, port)]


def test_gym_servers_reach_name_servers_and_no_other_address() -> None:
    assert _reached() == ["10.96.0.10:53"]


def test_gym_servers_reach_what_the_spec_opens_but_no_metadata_service() -> None:
    assert _reached(cidrs=["0.0.0.0/0"]) == ["93.184.215.14:443", "93.184.215.14:80", "10.96.0.1:443", "10.96.0.10:53"]
    assert _reached(cidrs=["93.184.0.0/16"], ports=[443]) == ["93.184.215.14:443", "10.96.0.10:53"]


def test_gym_servers_reach_the_pods_that_they_call() -> None:
    policy = World(sandboxes={}).to_servers().objects["NetworkPolicy"]["run-gym"]
    (own,) = policy["spec"]["egress"][0]["to"]
    assert own["podSelector"]["matchExpressions"][0]["values"] == ["gym", "gateway", "broker", "sandbox"]


def test_gym_servers_reach_the_namespaces_that_the_spec_names() -> None:
    gym = {"configPaths": ["a.yaml"], "egress": {"namespaces": ["judges"], "ports": [8000]}}
    policy = World(gym=gym).to_servers().objects["NetworkPolicy"]["run-gym"]
    assert policy["spec"]["egress"][-1] == {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "judges"}}}],
        "ports": [{"port": 8000, "protocol": "TCP"}],
    }


def test_what_gym_servers_reach_can_change_during_a_run() -> None:
    world = World().to_training()
    world.change(gym={"configPaths": ["a.yaml"], "egress": {"cidrs": ["10.0.0.0/8"]}})
    assert [f"{m['kind']}/{m['metadata']['name']}" for m in world.reconcile().apply] == [
        "ConfigMap/run-run",
        "NetworkPolicy/run-gym",
    ]


@pytest.mark.parametrize("role", [Role.PREFLIGHT, Role.GATEWAY])
def test_preflight_reaches_the_network_but_no_metadata_service(role: Role) -> None:
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


MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
PEERS = [{"namespaceSelector": {"matchLabels": MONITORING}, "podSelector": {"matchLabels": PROMETHEUS}}]


def _scraped(*roles: Role, peers: Any = PEERS, **blocks: Any) -> World:
    world = World(**blocks)
    world.defaults = replace(DEFAULTS, scrapers=Scrapers.parse(json.dumps(peers), roles or ROLES))
    return world


def _policies(world: World) -> list[dict[str, Any]]:
    return list(world.to_servers().objects["NetworkPolicy"].values())


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("port", [8000, 8080, 8787, 29500])
def test_a_scraper_reaches_the_ports_of_metrics_and_no_other(role: Role, port: int) -> None:
    policies = _policies(_scraped(sandboxes={}, inference={"nodes": 2}))
    target = labels.run_labels("run", role)
    metrics = {Role.TRAINER: (8000, 8080), Role.GATEWAY: (8000, 8080), Role.BROKER: (8000, 8080)}
    expected = port in metrics.get(role, ())
    assert lets_in(policies, PROMETHEUS, target, namespace=MONITORING, port=port) is expected


@pytest.mark.parametrize(
    ("pod", "namespace"), [(PROMETHEUS, {"kubernetes.io/metadata.name": "team"}), ({"app": "other"}, MONITORING)]
)
def test_nobody_else_is_let_in_with_the_scraper(pod: dict[str, str], namespace: dict[str, str]) -> None:
    policies = _policies(_scraped(sandboxes={}))
    for role in Role:
        assert not lets_in(policies, pod, labels.run_labels("run", role), namespace=namespace, port=8080)


def test_vllm_is_scraped_where_somebody_says_so() -> None:
    policies = _policies(_scraped(Role.INFERENCE))
    target = labels.run_labels("run", Role.INFERENCE)
    assert lets_in(policies, PROMETHEUS, target, namespace=MONITORING, port=8000)
    assert not lets_in(policies, PROMETHEUS, target, namespace=MONITORING, port=29510)


def test_without_scrapers_there_is_no_policy_for_them() -> None:
    assert "run-metrics" not in World().to_servers().objects["NetworkPolicy"]


def test_a_broker_that_the_run_lacks_is_no_reason_for_a_policy() -> None:
    assert "run-metrics" not in _scraped(Role.BROKER).to_servers().objects["NetworkPolicy"]


def test_a_run_under_way_follows_a_change_of_the_scrapers_and_keeps_its_pods() -> None:
    world = World().to_servers()
    world.defaults = replace(DEFAULTS, scrapers=Scrapers.parse(json.dumps(PEERS), ROLES))
    done = world.reconcile(60.0)
    assert [manifest["metadata"]["name"] for manifest in done.apply] == ["run-metrics"]
    world.defaults = DEFAULTS
    done = world.reconcile(60.0)
    assert (done.apply, [one.name for one in done.delete]) == ((), ["run-metrics"])
