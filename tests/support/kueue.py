"""Kueue beside an API server: its kinds, and its real controller with its webhooks."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from tests.support.apiserver import Programs, binary, document, free_port
from tests.support.go_controller import (
    admin_of,
    call_here,
    configuration,
    install_crds,
    make_certificate,
    wait_until_ready,
)

FLAVOR = "h100"

# Without its own management of certificates Kueue reads those of its metrics from a path of its image. So it gets an
# /etc of its own, in a mount namespace that ends with it.
_WITH_OWN_ETC = (
    'mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && ln -s "$0" /etc/kueue/metrics/certs && exec "$@"'
)
_WEBHOOKS = {"workloads", "workloads/status", "clusterqueues", "resourceflavors", "cohorts", "jobs"}


def install_kinds(server: Programs) -> None:
    """Makes the API server serve Kueue's kinds."""
    install_crds(server, "crds-kueue", "kueue.yaml", "Kueue")


def start_controller(server: Programs, folder: Path) -> None:
    """Starts it beside the API server, which calls its webhooks on this machine. `folder`: of its files."""
    make_certificate(folder, "kueue")
    webhooks, health = free_port(), free_port()
    config = configuration("config.kueue.x-k8s.io/v1beta2", folder, webhooks, health)
    config["integrations"] = {"frameworks": ["batch/job"]}
    (folder / "config.yaml").write_text(json.dumps(config))
    apart = ["--mount", *(["--map-root-user"] if os.getuid() else [])]
    command = [binary("kueue"), f"--kubeconfig={server.kubeconfig}", f"--config={folder / 'config.yaml'}"]
    command.append("--feature-gates=VisibilityOnDemand=false")
    server.run("unshare", *apart, "sh", "-c", _WITH_OWN_ETC, str(folder), *command)
    wait_until_ready(health, "Kueue")
    for manifest in yaml.safe_load_all(document("kueue", "kueue-webhooks.yaml").read_text()):
        if not manifest:
            continue
        wanted = [
            one for one in manifest["webhooks"] if any(_WEBHOOKS & set(rule["resources"]) for rule in one["rules"])
        ]
        for webhook in wanted:
            call_here(webhook, webhooks, folder)
        admin_of(server).apply(manifest | {"webhooks": wanted})


def remove(server: Programs) -> None:
    """Removes its webhooks and its kinds, with all objects of them, from a cluster that goes on without it."""
    admin = admin_of(server)
    for manifest in yaml.safe_load_all(document("kueue", "kueue-webhooks.yaml").read_text()):
        if manifest:
            admin.run("delete", manifest["kind"], manifest["metadata"]["name"], "--ignore-not-found")
    crds = ("-f", str(document("crds-kueue", "kueue.yaml")), "--ignore-not-found")
    admin.run("delete", *crds, "--timeout=60s", check=False)  # objects with a finalizer of the controller's stay


def make_queues(server: Programs, cpus: str, **spec: Any) -> None:
    """Makes a ClusterQueue `cluster` with one flavor, for all namespaces, and two priorities."""
    flavor = {"nodeLabels": {"pool": FLAVOR}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    resources = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "1000Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": FLAVOR, "resources": resources}]}
    queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
        **spec,
    }
    admin_of(server).apply(
        _cluster_object("ResourceFlavor", FLAVOR, spec=flavor),
        _cluster_object("ClusterQueue", "cluster", spec=queue),
        _cluster_object("WorkloadPriorityClass", "urgent", value=1000),
        _cluster_object("WorkloadPriorityClass", "ordinary", value=10),
    )


def make_placing_queue(server: Programs, node: str) -> None:
    """Makes a ClusterQueue `placed` whose pods Kueue places itself, node by node, on the one node that there is."""
    admin = admin_of(server)
    admin.run("label", "node", node, "pool=placed", f"kubernetes.io/hostname={node}", "--overwrite")
    room = {"cpu": "64", "memory": "1000Gi", "pods": "110"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": room, "capacity": room}
    patch = json.dumps({"status": ready})
    admin.run("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)
    admin.run("taint", "node", node, "node.kubernetes.io/not-ready-", check=False)  # its controller isn't there
    resources = [{"name": name, "nominalQuota": room[name]} for name in ("cpu", "memory")]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "placed", "resources": resources}]}
    admin.apply(
        _cluster_object("Topology", "hosts", spec={"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        _cluster_object("ResourceFlavor", "placed", spec={"nodeLabels": {"pool": "placed"}, "topologyName": "hosts"}),
        _cluster_object("ClusterQueue", "placed", spec={"namespaceSelector": {}, "resourceGroups": [group]}),
    )


def local_queue(name: str, namespace: str, queue: str = "cluster") -> dict[str, Any]:
    """A LocalQueue of a ClusterQueue."""
    made = _cluster_object("LocalQueue", name, spec={"clusterQueue": queue})
    made["metadata"]["namespace"] = namespace
    return made


def _cluster_object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}
