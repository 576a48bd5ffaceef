"""What NetworkPolicies of one namespace let in and out, judged as Kubernetes does, for the selectors that runs use."""

from ipaddress import ip_address, ip_network
from typing import Any

type Labels = dict[str, str]
type Object = dict[str, Any]


def lets_in(policies: list[Object], source: Labels, target: Labels) -> bool:
    """Whether a pod with the labels `source` reaches one with `target`, in the same namespace, on any port."""
    around = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], target)]
    if not around:
        return True
    peers = [peer for spec in around for rule in spec.get("ingress", []) for peer in rule["from"]]
    return any(_selects(peer["podSelector"], source) for peer in peers if "namespaceSelector" not in peer)


def lets_out(policies: list[Object], source: Labels, address: str, port: int) -> bool:
    """Whether a pod with the labels `source` reaches an address outside of the cluster by TCP."""
    around = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], source)]
    rules = [spec.get("egress", []) for spec in around if "Egress" in spec["policyTypes"]]
    return not rules or any(_goes(rule, address, port) for some in rules for rule in some)


def _goes(rule: Object, address: str, port: int) -> bool:
    if "ports" in rule and {"port": port, "protocol": "TCP"} not in rule["ports"]:
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
