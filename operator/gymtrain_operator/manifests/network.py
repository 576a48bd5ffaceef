"""The NetworkPolicies around a run: NeMo Gym's, vLLM's and the trainer's servers have no authentication.

    Gym servers, gateway, preflight   ◄── all pods of the run but sandboxes, the operator; Gym servers reach gateway,
                                          broker, sandboxes, each other, and what the spec opens
    vLLM, trainer                     ◄── gateway, vLLM and its workers, trainer, the operator
    workers of vLLM                   ◄── vLLM and its workers, trainer
    broker                            ◄── Gym servers, trainer, the operator
    sandboxes                         ◄── Gym servers, broker; and they reach nothing, or what the spec opens

The inner policy keeps out the Gym servers, which run others' code: whoever reaches vLLM can pause it or give it other
weights, and whoever reaches the trainer's rendezvous can take it over. Gym servers generate through the gateway.
vLLM pods reach each other since they are ranks of one group where NCCL carries the weights; and where a server spans
several pods, for each token. Those that are workers serve nobody, so not even the gateway reaches them.

A policy only adds to what others let in, so each pod is selected by one of them, and by that for scrapers.

Gym servers run others' code: they reach what they call in the run, name servers, and what the spec opens. Preflight
runs the same code and fetches models and data, so all is open to it but the addresses at which clouds hand a node's
credentials to whoever asks. The gateway shares its policy, and so do Gym servers of runs that began before they had
their own.
"""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import digest, metadata, stamped

# Labels that the chart gives the operator's pods.
OPERATOR_LABELS = {"app.kubernetes.io/name": "gymtrain", "app.kubernetes.io/component": "operator"}

_INNER = [labels.Role.INFERENCE, labels.Role.TRAINER]
# AWS, Google and most others below 169.254; Alibaba; Azure's wire server; AWS and Google over IPv6.
_METADATA_SERVICES = tuple(
    map(ip_network, ("100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16", "fd00:ec2::/32", "fd20:ce::254/128"))
)
_WITH_OWN_POLICY = [*_INNER, labels.Role.BROKER, labels.Role.SANDBOX]


def network_policies(run: RunContext) -> list[Object]:
    """Builds all policies of a run."""
    workers = [labels.Role.INFERENCE_WORKER] if run.spec.inference.nodes > 1 else []
    all_but_sandboxes = [_pods(run, "NotIn", [labels.Role.SANDBOX]), _OPERATOR]
    gym = [] if run.kept.open_gym else [labels.Role.GYM]
    outer = _ingress(run, _pods(run, "NotIn", [*_WITH_OWN_POLICY, *workers, *gym]), all_but_sandboxes)
    outer |= {"policyTypes": ["Ingress", "Egress"], "egress": _ANYWHERE_BUT_METADATA}
    clients = [labels.Role.GATEWAY, *_INNER, *workers]
    inner = _ingress(run, _pods(run, "In", _INNER), [_pods(run, "In", clients), _OPERATOR])
    policies = [
        _policy(run, names.network_policy(run.name), outer),
        _policy(run, names.inner_network_policy(run.name), inner),
    ]
    if gym:
        servers = _ingress(run, _pods(run, "In", gym), all_but_sandboxes)
        servers |= {"policyTypes": ["Ingress", "Egress"], "egress": _from_gym(run)}
        policies.append(_policy(run, names.gym_network_policy(run.name), servers))
    if workers:
        group = _ingress(run, _pods(run, "In", workers), [_pods(run, "In", [*_INNER, *workers])])
        policies.append(_policy(run, names.worker_network_policy(run.name), group))
    if scraped := around_scraped(run):
        policies.append(_policy(run, names.metrics_network_policy(run.name), scraped))
    if run.spec.sandboxes is None:
        return policies
    clients = [labels.Role.GYM, labels.Role.TRAINER]
    broker = _ingress(run, _pods(run, "In", [labels.Role.BROKER]), [_pods(run, "In", clients), _OPERATOR])
    return [
        *policies,
        _policy(run, names.broker_network_policy(run.name), broker),
        _policy(run, names.sandbox_network_policy(run.name), _around_sandboxes(run)),
    ]


def around_scraped(run: RunContext) -> Object | None:
    """Adds to the others, since Gym servers share one with the gateway and are nothing to scrapers; None where nobody
    scrapes."""
    scrapers = run.defaults.scrapers
    roles = [role for role in scrapers.roles if role != labels.Role.BROKER or run.spec.sandboxes is not None]
    rule = scrapers.rule(roles)
    return rule and {"podSelector": _pods(run, "In", roles), "policyTypes": ["Ingress"], "ingress": [rule]}


def _from_gym(run: RunContext) -> list[Object]:
    """Opens what Gym servers call in the run, name servers, and what the spec says."""
    called = [labels.Role.GYM, labels.Role.GATEWAY, labels.Role.BROKER, labels.Role.SANDBOX]
    rules: list[Object] = [
        {"to": [{"podSelector": _pods(run, "In", called)}]},
        {"ports": _dns_ports()},  # name servers may be anywhere (NodeLocal DNSCache)
    ]
    egress = run.spec.gym.egress
    if egress is None:
        return rules
    namespaces = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in egress.namespaces
    ]
    to = [*({"ipBlock": _block(cidr)} for cidr in egress.cidrs), *namespaces]
    if to:
        ports = [{"port": port, "protocol": "TCP"} for port in egress.ports]
        rules.append({"to": to} | ({"ports": ports} if ports else {}))
    return rules


def _around_sandboxes(run: RunContext) -> Object:
    """Opens only the daemon's port, since all else goes through it, and to the outside what the spec says."""
    sandboxes = run.spec.sandboxes
    assert sandboxes is not None
    callers = _pods(run, "In", [labels.Role.GYM, labels.Role.BROKER])
    daemon = [{"port": wiring.SANDBOX_PORT, "protocol": "TCP"}]
    network = sandboxes.network
    egress: list[Object] = []
    if network.mode == "EgressAllowed":
        rule: Object = {"to": [{"ipBlock": _block(cidr)} for cidr in network.cidrs]}
        ports = [{"port": port, "protocol": "TCP"} for port in network.ports]
        egress = [rule | ({"ports": ports} if ports else {}), _to_name_servers(run)]
    return {
        "podSelector": _pods(run, "In", [labels.Role.SANDBOX]),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": callers}], "ports": daemon}],
        "egress": egress,
    }


def _block(cidr: str) -> Object:
    """Returns the addresses of a range, but not those at which clouds hand a node's credentials to whoever asks."""
    try:
        network = ip_network(cidr, strict=False)
    except ValueError:
        return {"cidr": cidr}  # the API server says what is wrong with it
    inside = [str(service) for service in _METADATA_SERVICES if service != network and _holds(network, service)]
    return {"cidr": cidr, "except": inside} if inside else {"cidr": cidr}


def _holds(network: IPv4Network | IPv6Network, other: IPv4Network | IPv6Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.supernet_of(other)
    return isinstance(other, IPv6Network) and network.supernet_of(other)


def _pods(run: RunContext, operator: str, roles: list[labels.Role]) -> Object:
    """Returns a selector of the run's pods, narrowed by role."""
    values = [str(role) for role in roles]
    return {
        "matchLabels": {labels.RUN: run.name},
        "matchExpressions": [{"key": labels.ROLE, "operator": operator, "values": values}],
    }


def _dns_ports(*ports: int) -> list[Object]:
    return [{"port": port, "protocol": protocol} for port in ports or (53,) for protocol in ("UDP", "TCP")]


def _to_name_servers(run: RunContext) -> Object:
    """Opens DNS: to where the cluster's defaults say that it is, or to where it is in most clusters."""
    dns = run.applied.dns
    if dns is None:
        return _DNS
    peers: list[Object] = [{"ipBlock": {"cidr": cidr}} for cidr in dns.cidrs]
    if dns.namespace is not None:
        peers.append(_name_servers(dns.namespace, {"matchLabels": dns.pod_labels} if dns.pod_labels else {}))
    return {"to": peers, "ports": _dns_ports(*dns.ports)} if peers else {"ports": _dns_ports(*dns.ports)}


def _name_servers(namespace: str, pods: Object) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}, "podSelector": pods}


_OPERATOR: Object = {"matchLabels": OPERATOR_LABELS}
_DNS: Object = {
    "to": [
        # By their labels on kubeadm, kind, GKE, EKS, AKS, k3s and RKE2 (kube-dns, which CoreDNS has too), NodeLocal
        # DNSCache, and charts of CoreDNS.
        _name_servers(
            "kube-system",
            {
                "matchExpressions": [
                    {"key": "k8s-app", "operator": "In", "values": ["kube-dns", "coredns", "node-local-dns"]}
                ]
            },
        ),
        _name_servers("openshift-dns", {}),  # its pods listen on 5353, and policies see the pods' port
        {"ipBlock": {"cidr": "169.254.20.10/32"}},  # NodeLocal DNSCache, on the node itself
    ],
    "ports": _dns_ports(53, 5353),
}
_ANYWHERE_BUT_METADATA: list[Object] = [
    # Name servers may have a link-local address (NodeLocal DNSCache).
    {"ports": _dns_ports()},
    # To some network plugins a range of addresses never means pods.
    {"to": [{"namespaceSelector": {}}]},
    {"to": [{"ipBlock": _block("0.0.0.0/0")}, {"ipBlock": _block("::/0")}]},
]


def _ingress(run: RunContext, around: Object, let_in: list[Object]) -> Object:
    peers: list[Any] = []
    for selector in let_in:
        if selector is not _OPERATOR:
            peers.append({"podSelector": selector})
        elif run.defaults.operator_namespace:
            namespace = {"kubernetes.io/metadata.name": run.defaults.operator_namespace}
            peers.append({"namespaceSelector": {"matchLabels": namespace}, "podSelector": selector})
    return {"podSelector": around, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}


def _policy(run: RunContext, name: str, spec: Object) -> Object:
    manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(run, name),
        "spec": spec,
    }
    return stamped(manifest, digest(spec))
