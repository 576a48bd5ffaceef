"""Services."""

from typing import Any

from gymtrain_api import labels
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.manifests.metadata import metadata, stamped

_LONGEST_AFFINITY_SECONDS = 86400  # the API server takes no more


def service(
    run: RunContext,
    name: str,
    role: labels.Role,
    ports: dict[str, int],
    *,
    selector: dict[str, str] | None = None,
    headless: bool = False,
    sticky: bool = False,
) -> Object:
    """A Service over the pods of a role.

    Args:
        ports: numbers by name, the same on the pods.
        selector: labels that further narrow the pods.
        headless: one DNS record a pod, ready or not, instead of a virtual IP.
        sticky: a client pod always reaches the same server pod, as long as it lives.
    """
    narrowed = selector or {}
    spec: dict[str, Any] = {
        "selector": labels.run_labels(run.name, role) | narrowed,
        "ports": [{"name": port, "port": number, "targetPort": number} for port, number in ports.items()],
    }
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    if sticky:
        spec |= {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": _LONGEST_AFFINITY_SECONDS}},
        }
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(run, name, role, **narrowed),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))
