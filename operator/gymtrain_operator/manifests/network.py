"""The fences around a run: NeMo Gym's, vLLM's and the trainer's servers have no authentication.

    Gym servers, gateway, preflight   ◄── all pods of the run, the operator
    vLLM, trainer                     ◄── gateway, vLLM, trainer, the operator

The inner fence keeps out the Gym servers, which run others' code: whoever reaches vLLM can pause it or give it other
weights, and whoever reaches the trainer's rendezvous can take it over. Gym servers generate through the gateway.
vLLM pods reach each other since they are ranks of one group where NCCL carries the weights.

A policy only adds to what others let in, so each pod is selected by one of the two.
"""

from typing import Any

from gymtrain_api import labels, names
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped

# Labels that the chart gives the operator's pods.
OPERATOR_LABELS = {"app.kubernetes.io/name": "gymtrain", "app.kubernetes.io/component": "operator"}

_INNER = [str(role) for role in (labels.Role.INFERENCE, labels.Role.TRAINER)]
_LET_IN = [str(labels.Role.GATEWAY), *_INNER]


def network_policies(run: RunContext) -> list[Object]:
    """Both fences. Traffic out is open: judge models, the model hub."""
    return [
        _policy(run, names.network_policy(run.name), _pods(run, "NotIn", _INNER), _pods(run)),
        _policy(run, names.inner_network_policy(run.name), _pods(run, "In", _INNER), _pods(run, "In", _LET_IN)),
    ]


def _pods(run: RunContext, operator: str = "", roles: list[str] | None = None) -> Object:
    """Selector of the run's pods, narrowed by role."""
    selector: Object = {"matchLabels": {labels.RUN: run.name}}
    if operator:
        selector["matchExpressions"] = [{"key": labels.ROLE, "operator": operator, "values": roles}]
    return selector


def _policy(run: RunContext, name: str, around: Object, let_in: Object) -> Object:
    peers: list[Any] = [{"podSelector": let_in}]
    if run.defaults.operator_namespace:
        namespace = {"kubernetes.io/metadata.name": run.defaults.operator_namespace}
        peers.append({"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": OPERATOR_LABELS}})
    spec = {"podSelector": around, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
    manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(run, name),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))
