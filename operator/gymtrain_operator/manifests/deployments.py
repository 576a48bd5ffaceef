"""Deployments."""

from typing import Any

from gymtrain_api import labels
from gymtrain_api.merge import merge
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped


def deployment(
    run: RunContext,
    name: str,
    role: labels.Role,
    template: dict[str, Any],
    *,
    replicas: int,
    inputs: object,
    selector: dict[str, str] | None = None,
    recreate: bool = False,
) -> Object:
    """A Deployment whose pods are replaced when `inputs` change, and only then.

    `inputs` is what of the spec and of the resolved config the pods are made from. Its hash, not that of
    the template, says whether the Deployment is up to date: another release of the operator builds
    another template from the same inputs, and must not restart a running server.
    """
    narrowed = selector or {}
    config_hash = digest(inputs)
    template = merge(template, {"metadata": {"annotations": {labels.CONFIG_HASH: config_hash}}})
    strategy: dict[str, Any] = {"type": "Recreate"}
    if not recreate:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(run, name, role, **narrowed),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels.run_labels(run.name, role) | narrowed},
            "strategy": strategy,
            "template": template,
        },
    }
    return stamped(manifest, config_hash)
