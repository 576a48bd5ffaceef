"""The node: kubelet, kube-proxy, and kube-router, which enforces NetworkPolicy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dev.cluster import pki
from dev.cluster.control_plane import Ports
from dev.files import write
from dev.host import cgroups, processes
from dev.host.processes import Daemon
from dev.settings import (
    CGROUP,
    CLUSTER_DOMAIN,
    CONTAINERD_2_FEATURES,
    DNS_SERVICE_IP,
    NODE_IP,
    NODE_NAME,
    POD_CIDR,
    SERVICE_CIDR,
    Settings,
)


def daemons(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> list[Daemon]:
    """The node's own three, after containerd."""
    return [_kubelet(settings, programs, ports), _proxy(settings, programs, ports), _router(settings, programs)]


def start(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> None:
    """Start them; that the node became Ready is for the caller to see."""
    cgroups.create()
    for daemon in daemons(settings, programs, ports):
        processes.start(settings, daemon)


def _kubelet(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> Daemon:
    socket = f"unix://{settings.containerd_socket}"
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "port": ports.kubelet,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(settings.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(settings.pki / "kubelet-server.key"),
        "containerRuntimeEndpoint": socket,
        "imageServiceEndpoint": socket,
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(_resolv_conf(settings)),
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(settings.state / "pods"),
        "volumePluginDir": str(settings.state / "volume-plugins"),
        "staticPodPath": "",
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "maxPods": 200,
        # A pod that forks without end is its own problem.
        "podPidsLimit": 1024,
        # A disk that is shared with everything else on the machine is no reason to evict pods or images.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # All of two cores are for the pods; the daemons live on what is left, as on any small machine.
        "enforceNodeAllocatable": [],
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
        "eventRecordQPS": 0,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "syncFrequency": "30s",
    }
    if settings.containerd_2.exists():
        config["featureGates"] = dict.fromkeys(CONTAINERD_2_FEATURES, True)
    path = settings.state / "kubelet.json"
    write(path, json.dumps(config, indent=2))
    return Daemon(
        "kubelet",
        [
            programs["kubelet"],
            f"--config={path}",
            f"--kubeconfig={pki.kubeconfig(settings, 'kubelet')}",
            f"--root-dir={settings.state / 'kubelet'}",
            f"--cert-dir={settings.state / 'kubelet-pki'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
            "--node-labels=node.kubernetes.io/instance-type=dev",
        ],
    )


def _resolv_conf(settings: Settings) -> Path:
    """The machine's resolver, for CoreDNS and host-network pods."""
    managed = Path("/run/systemd/resolve/resolv.conf")
    machine = (managed if managed.exists() else Path("/etc/resolv.conf")).read_text()
    path = settings.state / "resolv.conf"
    write(path, "\n".join([*resolvers(machine), ""]))
    return path


def resolvers(resolv_conf: str) -> list[str]:
    """The machine's nameservers, without loopback addresses: there CoreDNS would ask itself, again and again, until it
    answers nothing at all. Where there is no other, the node's own address, which says at once that nobody listens."""
    lines = [line for line in resolv_conf.splitlines() if line.startswith("nameserver")]
    return [line for line in lines if not line.split()[1].startswith(("127.", "::1"))] or [f"nameserver {NODE_IP}"]


def _proxy(settings: Settings, programs: Mapping[str, Path], ports: Ports) -> Daemon:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig(settings, "kube-proxy"))},
        "clusterCIDR": POD_CIDR,
        "hostnameOverride": NODE_NAME,
        "bindAddress": NODE_IP,
        "healthzBindAddress": "",
        "metricsBindAddress": f"127.0.0.1:{ports.proxy_metrics}",
        "oomScoreAdj": 0,
        # The table's size is the machine's business, and not writable everywhere.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "200ms"},
    }
    path = settings.state / "kube-proxy.json"
    write(path, json.dumps(config, indent=2))
    return Daemon("kube-proxy", [programs["kube-proxy"], f"--config={path}"])


def _router(settings: Settings, programs: Mapping[str, Path]) -> Daemon:
    return Daemon(
        "kube-router",
        [
            programs["kube-router"],
            f"--kubeconfig={pki.kubeconfig(settings, 'kube-router')}",
            f"--hostname-override={NODE_NAME}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-loadbalancer=false",
            "--enable-cni=false",
            "--health-port=0",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
        ],
    )
