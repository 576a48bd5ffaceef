"""What a cluster has besides its daemons: DNS, a default StorageClass, kube-router's rights; and whether it works."""

from __future__ import annotations

import json
import secrets
import socket
import struct
from pathlib import Path

from dev.cluster import control_plane
from dev.cluster.containerd import PROGRAM_IMAGES
from dev.host import processes
from dev.report import wait_until
from dev.settings import (
    API_SERVICE_IP,
    BASE_IMAGE,
    CLUSTER_DOMAIN,
    DAEMONS,
    DNS_SERVICE_IP,
    NODE_NAME,
    Settings,
)
from dev.shell import run
from dev.supply.binaries import existing

_MANIFESTS = Path(__file__).resolve().parent.parent / "manifests"


def kubectl(settings: Settings, *arguments: str, stdin: str = "", check: bool = True, deadline: float = 60) -> str:
    """kubectl as administrator."""
    argv: list[str | Path] = [existing(settings, "kubectl"), f"--kubeconfig={settings.kubeconfig}", *arguments]
    return run(argv, stdin=stdin, check=check, deadline=deadline).stdout


def apply(settings: Settings) -> None:
    """Create or update all of dev/manifests."""
    values = {
        "COREDNS_IMAGE": PROGRAM_IMAGES["coredns"],
        "PROVISIONER_IMAGE": PROGRAM_IMAGES["local-path-provisioner"],
        "BASE_IMAGE": BASE_IMAGE,
        "DNS_SERVICE_IP": DNS_SERVICE_IP,
        "VOLUMES": str(settings.state / "volumes"),
    }
    documents = "\n---\n".join(path.read_text() for path in sorted(_MANIFESTS.glob("*.yaml")))
    for name, value in values.items():
        documents = documents.replace(f"@{name}@", value)
    kubectl(settings, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=documents)


def wait_ready(settings: Settings) -> None:
    """The node Ready, DNS answering through its Service, the provisioner running."""

    def alive(problem: str) -> str:
        processes.require(settings, DAEMONS)
        return problem

    log = settings.logs / "kubelet.log"
    wait_until("the node", lambda: alive(node_not_ready(settings)), deadline=180, log=log, fix="see the kubelet's log")
    fix = f"see `kubectl get pods -A`, {settings.logs / 'kube-proxy.log'}"
    wait_until("cluster DNS", lambda: alive(dns_not_ready()), deadline=180, log=log, fix=fix)
    wait_until("the storage provisioner", lambda: alive(_storage_not_ready(settings)), deadline=180, log=log, fix=fix)


def node_not_ready(settings: Settings) -> str:
    """Empty when the node is Ready; else what it says."""
    said = kubectl(settings, "get", "node", NODE_NAME, "--output=json", "--ignore-not-found", check=False)
    try:
        conditions = {entry["type"]: entry for entry in json.loads(said)["status"]["conditions"]}
        ready = conditions["Ready"]
    except (ValueError, KeyError):
        return "not registered"
    return "" if ready["status"] == "True" else f"{ready['reason']}: {ready['message']}"


def _storage_not_ready(settings: Settings) -> str:
    query = ("get", "deployment", "local-path-provisioner", "--namespace=local-path-storage", "--output=json")
    try:
        status = json.loads(kubectl(settings, *query, check=False))["status"]
    except (ValueError, KeyError):
        return "not there"
    return "" if status.get("availableReplicas") else "no available replica"


def dns_not_ready() -> str:
    """Empty when the Service of the cluster's DNS resolves the API server's name to the right address.

    A question over the wire, not a status: after a restart statuses are stale, and an answer also proves kube-proxy.
    """
    name = f"kubernetes.default.svc.{CLUSTER_DOMAIN}"
    identity = secrets.token_bytes(2)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = identity + struct.pack(">5H", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(3)
        try:
            sock.sendto(question, (DNS_SERVICE_IP, 53))
            answer = sock.recv(512)
        except OSError as error:
            return f"{DNS_SERVICE_IP}: {error}"
    right = answer.startswith(identity) and answer.endswith(socket.inet_aton(API_SERVICE_IP))
    return "" if right else f"{name} does not resolve to {API_SERVICE_IP}"


def is_up(settings: Settings) -> str:
    """Empty when the whole cluster works; else the first thing that doesn't."""
    if dead := processes.dead(settings, DAEMONS):
        return f"{', '.join(dead)} not running"
    return control_plane.not_ready(settings) or node_not_ready(settings) or dns_not_ready()
