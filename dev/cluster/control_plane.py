"""etcd, the API server, the controller manager and the scheduler: their flags, and when they are up."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.cluster import pki
from dev.files import write
from dev.host import processes
from dev.host.processes import Daemon
from dev.report import DevError, wait_until
from dev.settings import CLUSTER_DOMAIN, CONTAINERD_2_FEATURES, NODE_IP, POD_CIDR, SERVICE_CIDR, Settings


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports chosen free when the cluster was made: another one may have the usual numbers."""

    etcd: int
    etcd_peer: int
    api: int
    kubelet: int
    proxy_metrics: int

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{NODE_IP}:{self.api}"

    def save(self, settings: Settings) -> None:
        """Remember them for the next command."""
        write(_ports_file(settings), json.dumps(asdict(self)))


def _ports_file(settings: Settings) -> Path:
    return settings.state / "ports.json"


def saved_ports(settings: Settings) -> Ports:
    """The ports of the cluster that exists."""
    return Ports(**json.loads(_ports_file(settings).read_text()))


def choose_ports() -> Ports:
    """The usual ports where they are free, else the next free ones."""
    return Ports(
        etcd=_free("127.0.0.1", 2379),
        etcd_peer=_free("127.0.0.1", 2380),
        api=_free(NODE_IP, 6443),
        kubelet=_free(NODE_IP, 10250),
        proxy_metrics=_free("127.0.0.1", 10249),
    )


def _free(address: str, usual: int) -> int:
    for port in range(usual, usual + 2000, 10):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise DevError(f"no free port from {usual} on {address}")


def daemons(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> list[Daemon]:
    """All four, in the order in which they start."""
    return [
        _etcd(settings, programs, ports),
        _api_server(settings, programs, ports),
        _controller_manager(settings, programs, ports),
        _scheduler(settings, programs),
    ]


def _etcd(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> Daemon:
    client, peer = f"https://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    certificates = settings.pki
    return Daemon(
        "etcd",
        [
            programs["etcd"],
            "--name=gymtrain",
            f"--data-dir={settings.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=gymtrain={peer}",
            f"--cert-file={certificates / 'etcd.crt'}",
            f"--key-file={certificates / 'etcd.key'}",
            f"--trusted-ca-file={certificates / 'ca.crt'}",
            "--client-cert-auth",
            # A development cluster may lose its last second in a power cut; it may not wait for the disk.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
    )


def _api_server(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> Daemon:
    certificates = settings.pki
    argv: list[str | Path] = [
        programs["kube-apiserver"],
        f"--advertise-address={NODE_IP}",
        f"--bind-address={NODE_IP}",
        f"--secure-port={ports.api}",
        f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
        f"--etcd-cafile={certificates / 'ca.crt'}",
        f"--etcd-certfile={certificates / 'etcd.crt'}",
        f"--etcd-keyfile={certificates / 'etcd.key'}",
        f"--client-ca-file={certificates / 'ca.crt'}",
        f"--tls-cert-file={certificates / 'apiserver.crt'}",
        f"--tls-private-key-file={certificates / 'apiserver.key'}",
        f"--kubelet-client-certificate={certificates / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={certificates / 'apiserver-kubelet-client.key'}",
        f"--kubelet-certificate-authority={certificates / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={certificates / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={certificates / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={certificates / 'front-proxy-client.key'}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={certificates / 'service-account.pub'}",
        f"--service-account-signing-key-file={certificates / 'service-account.key'}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--profiling=false",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=lease",
    ]
    if settings.containerd_2.exists():
        argv.append("--feature-gates=" + ",".join(f"{gate}=true" for gate in CONTAINERD_2_FEATURES))
    if settings.audit:
        policy = settings.state / "audit-policy.json"
        rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
        write(policy, json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        argv += [f"--audit-policy-file={policy}", f"--audit-log-path={settings.logs / 'audit.jsonl'}"]
    return Daemon("kube-apiserver", argv)


def _controller_manager(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> Daemon:
    config = pki.kubeconfig(settings, "controller-manager")
    return Daemon(
        "kube-controller-manager",
        [
            programs["kube-controller-manager"],
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--leader-elect=false",
            "--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
            f"--cluster-cidr={POD_CIDR}",
            f"--root-ca-file={settings.pki / 'ca.crt'}",
            f"--service-account-private-key-file={settings.pki / 'service-account.key'}",
            f"--cluster-signing-cert-file={settings.pki / 'ca.crt'}",
            f"--cluster-signing-key-file={settings.pki / 'ca.key'}",
            "--use-service-account-credentials=true",
            # The defaults (20 and 30) throttle tests that make many objects at once.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ],
    )


def _scheduler(settings: Settings, programs: Mapping[str, Path]) -> Daemon:
    config = pki.kubeconfig(settings, "scheduler")
    return Daemon(
        "kube-scheduler",
        [
            programs["kube-scheduler"],
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--secure-port=0",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ],
    )


def start(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> None:
    """Start them in order: nothing is of use before the API server is."""
    etcd, api, *others = daemons(settings, programs, ports)
    processes.start(settings, etcd)
    processes.start(settings, api)
    log = api.log(settings)
    fix = f"see the log, and {etcd.log(settings)}"

    def problem() -> str:
        processes.require(settings, [etcd.name, api.name])
        return not_ready(settings)

    wait_until("the API server", problem, deadline=180, log=log, fix=fix)
    for daemon in others:
        processes.start(settings, daemon)


def not_ready(settings: Settings) -> str:
    """Empty once the API server says that it is ready; else what it says instead."""
    try:
        context = ssl.create_default_context(cafile=str(settings.pki / "ca.crt"))
        context.load_cert_chain(settings.pki / "admin.crt", settings.pki / "admin.key")
        url = f"{saved_ports(settings).server}/readyz"
        with urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        ).open(url, timeout=5) as answer:
            body = answer.read().decode(errors="replace")
        return "" if body == "ok" else body[-300:]
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")[-300:]
    except (OSError, ValueError, TypeError) as error:
        return str(error)
