"""The bridge that holds the node's address and the pods, its CNI configuration, and two kernel switches."""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from pathlib import Path

from dev.files import write
from dev.report import DevError
from dev.settings import BRIDGE, NAME, NODE_IP, POD_CIDR, POD_GATEWAY, SERVICE_CIDR, Settings
from dev.shell import run

# Without the second, traffic between pods of the node goes round NetworkPolicy.
SWITCHES = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def _switch(name: str) -> Path:
    return Path("/proc/sys") / name


def _remembered(settings: Settings) -> Path:
    return settings.state / "sysctl.json"


def raise_up(settings: Settings) -> None:
    """Make the bridge and turn the switches on, remembering what they were. Repeatable."""
    _refuse_overlaps()
    if not _switch(SWITCHES[1]).exists():
        run(["modprobe", "br_netfilter"])
    remembered = _remembered(settings)
    if not remembered.exists():
        write(remembered, json.dumps({name: _switch(name).read_text().strip() for name in SWITCHES}))
    for name in SWITCHES:
        _switch(name).write_text("1")
    if BRIDGE not in links():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    # The pods' gateway comes first: the CNI plugin compares the bridge's first address with its own.
    prefix = ip_network(POD_CIDR).prefixlen
    run(["ip", "address", "replace", f"{POD_GATEWAY}/{prefix}", "dev", BRIDGE])
    run(["ip", "address", "replace", f"{NODE_IP}/32", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    # kube-proxy rewrites Service addresses only after a route was found. The default route, where there is one,
    # would send those that it does not know out of the machine.
    run(["ip", "route", "replace", SERVICE_CIDR, "dev", BRIDGE, "src", NODE_IP])


def _refuse_overlaps() -> None:
    """Another network on our ranges would break either side in ways that are hard to read."""
    ours = [ip_network(POD_CIDR), ip_network(SERVICE_CIDR), ip_network(f"{NODE_IP}/32")]
    for link in json.loads(run(["ip", "-json", "-4", "address"]).stdout):
        for address in link.get("addr_info", []):
            theirs = ip_interface(f"{address['local']}/{address['prefixlen']}").network
            if link["ifname"] != BRIDGE and any(theirs.overlaps(network) for network in ours):
                raise DevError(
                    f"{link['ifname']} has {theirs}, which overlaps the cluster's ranges ({', '.join(map(str, ours))})",
                    fix="stop what made it (another cluster?), or change the ranges in dev/settings.py",
                )


def write_cni(settings: Settings) -> Path:
    """The pod network's configuration; returns its folder."""
    folder = settings.state / "cni"
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(settings.state / "ipam"),
            "ranges": [[{"subnet": POD_CIDR, "gateway": POD_GATEWAY}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    plugins = {"cniVersion": "0.4.0", "name": NAME, "plugins": [bridge, portmap]}
    write(folder / "10-gymtrain.conflist", json.dumps(plugins, indent=2))
    return folder


def tear_down(settings: Settings) -> None:
    """Remove the bridge with its veths, and put the switches back."""
    for link in links():
        run(["ip", "link", "delete", link], check=False)
    try:
        before: dict[str, str] = json.loads(_remembered(settings).read_text())
    except (OSError, ValueError):
        return
    for name in SWITCHES:
        if name in before and _switch(name).exists():
            _switch(name).write_text(before[name])


def links() -> list[str]:
    """The bridge, and the host ends of pods that hang on it (a dead pod's veth may outlive it)."""
    everything: list[dict[str, str]] = json.loads(run(["ip", "-json", "link"]).stdout)
    return [link["ifname"] for link in everything if BRIDGE in (link.get("master"), link["ifname"])]
