"""The fence around a run: NeMo Gym's and vLLM's servers have no authentication."""

from typing import Any

from gymtrain_api import labels, names
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped

# Labels that the chart gives the operator's pods.
OPERATOR_LABELS = {"app.kubernetes.io/name": "gymtrain", "app.kubernetes.io/component": "operator"}


def network_policy(run: RunContext) -> Object:
    """Lets in pods of the same run and the operator. Traffic out is open: judge models, the model hub."""
    peers: list[Any] = [{"podSelector": {"matchLabels": {labels.RUN: run.name}}}]
    if run.defaults.operator_namespace:
        namespace = {"kubernetes.io/metadata.name": run.defaults.operator_namespace}
        peers.append({"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": OPERATOR_LABELS}})
    spec = {
        "podSelector": {"matchLabels": {labels.RUN: run.name}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers}],
    }
    manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(run, names.network_policy(run.name)),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))
