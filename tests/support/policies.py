"""What NetworkPolicies of one namespace let in and out, judged as Kubernetes does, for the selectors that runs use."""

from ipaddress import ip_address, ip_network
from typing import Any

type Labels = dict[str, str]
type Object = dict[str, Any]


def lets_in(
    policies: list[Object], source: Labels, target: Labels, *, namespace: Labels | None = None, port: int | None = None
) -> bool:
    """Whether a pod with the labels `source` reaches one with `target` by TCP: from a namespace with the labels
    `namespace`, where None is the same one; at `port`, where None is any."""
    around = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], target)]
    if not around:
        return True
    rules = [rule for spec in around for rule in spec.get("ingress", [])]
    at_port = [rule for rule in rules if port is None or _is_open(rule, port)]
    return any(_is_peer(peer, source, namespace) for rule in at_port for peer in rule["from"])


def _is_open(rule: Object, port: int) -> bool:
    return "ports" not in rule or {"port": port, "protocol": "TCP"} in rule["ports"]


def _is_peer(peer: Object, source: Labels, namespace: Labels | None) -> bool:
    if ("namespaceSelector" in peer) != (namespace is not None):
        return False
    if namespace is not None and not _selects(peer["namespaceSelector"], namespace):
        return False
    return _selects(peer.get("podSelector", {}), source)


def lets_out(policies: list[Object], source: Labels, address: str, port: int) -> bool:
    """Whether a pod with the labels `source` reaches an address outside of the cluster by TCP."""
    around = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], source)]
    rules = [spec.get("egress", []) for spec in around if "Egress" in spec["policyTypes"]]
    return not rules or any(_goes(rule, address, port) for some in rules for rule in some)


def _goes(rule: Object, address: str, port: int) -> bool:
    if not _is_open(rule, port):
        return False
    return "to" not in rule or any(_inside(peer["ipBlock"], address) for peer in rule["to"] if "ipBlock" in peer)


def _inside(block: Object, address: str) -> bool:
    def holds(cidr: str) -> bool:
        return ip_address(address) in ip_network(cidr)

    return holds(block["cidr"]) and not any(map(holds, block.get("except", [])))


def _selects(selector: Object, labels: Labels) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(_expression(expression, labels) for expression in selector.get("matchExpressions", []))


def _expression(expression: Object, labels: Labels) -> bool:
    found = labels.get(expression["key"]) in expression["values"]
    return {"In": found, "NotIn": not found}[expression["operator"]]
