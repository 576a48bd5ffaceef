"""What NetworkPolicies of one namespace let in, judged as Kubernetes does, for the selectors that runs use."""

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


def _selects(selector: Object, labels: Labels) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(_expression(expression, labels) for expression in selector.get("matchExpressions", []))


def _expression(expression: Object, labels: Labels) -> bool:
    found = labels.get(expression["key"]) in expression["values"]
    return {"In": found, "NotIn": not found}[expression["operator"]]
