"""Who reaches whom around a run: the policies that the operator writes, judged by the cluster's own network.

Nothing trains here. A pod of each role answers at the ports that the real one has; others play the strangers.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels, wiring
from gymtrain_api.labels import Role
from gymtrain_operator.manifests.scrapers import ROLES, Scrapers
from tests.e2e.conftest import fresh_namespace
from tests.support.kubectl import Kubectl
from tests.support.world import DEFAULTS, World

type Object = dict[str, Any]
type Pod = Callable[..., Object]

SECONDS = 180  # a look is a command in each of the pods, which get what CPU is left
OTHER = 9999  # a port that no part of a run has
# Answers with its own name at each port: on some networks something answers at every address.
SERVE = f"""
import http.server, os, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.uname().nodename.encode())
    def log_message(self, *_):
        pass
def serve(port):
    http.server.ThreadingHTTPServer(("", port), Handler).serve_forever()
for port in {sorted({wiring.GYM_PORT, wiring.TRAINER_PORT, wiring.SANDBOX_PORT})}:
    threading.Thread(target=serve, args=(port,)).start()
serve({OTHER})
"""
# Prints the names of those that answer, of {name: [host, port]}.
REACH = """
import concurrent.futures, json, sys, urllib.request
def reached(target):
    name, (host, port) = target
    try:
        with urllib.request.urlopen(f"http://{host}:{port}", timeout=3) as answer:
            return answer.read().decode() == name.partition(":")[0]
    except OSError:
        return False
targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps([name for name, yes in zip(targets, pool.map(reached, targets.items())) if yes]))
"""
PORTS: dict[str, int] = {Role.TRAINER: wiring.TRAINER_PORT, Role.SANDBOX: wiring.SANDBOX_PORT}  # of the others: 8000

# By client, who of the run answers; docs/security.md says it in words. What answers at another port than a part's own:
# NAME:9999.
OPEN = {"preflight", "gym", "gateway"}
INNER = {"inference", "inference-worker", "trainer", f"trainer:{OTHER}"}
ANSWERS: dict[str, set[str]] = {
    "preflight": OPEN,
    "gateway": OPEN | INNER - {"inference-worker"},
    "gym": {"gateway", "broker", "sandbox"},
    "inference": OPEN | INNER,
    "inference-worker": OPEN | INNER,
    "trainer": OPEN | INNER | {"broker"},
    "broker": OPEN | {"sandbox"},
    "sandbox": set(),
    "scraper": {"trainer", "gateway", "broker"},
}
OUTSIDE = {"stranger", "neighbour", "scraper", "visitor", "in-namespace", "in-range"}
# Of those outside; from all others, and from one another, all answer.
CLOSED = {"gym": OUTSIDE - {"in-namespace", "in-range"}, "sandbox": OUTSIDE}


@pytest.fixture
def elsewhere(kubeconfig: str) -> Iterator[Kubectl]:
    with fresh_namespace(kubeconfig) as namespace:
        yield namespace


@pytest.fixture
def opened(kubeconfig: str) -> Iterator[Kubectl]:
    with fresh_namespace(kubeconfig) as namespace:
        yield namespace


def _policies(opened: str, monitoring: str, address: str) -> list[Object]:
    """Those of a run with everything that has a policy."""
    world = World(sandboxes={}, inference={"nodes": 2})
    world.spec["gym"]["egress"] = {"namespaces": [opened], "cidrs": [f"{address}/32"]}
    peers = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": monitoring}},
            "podSelector": {"matchLabels": {"app": "scraper"}},
        }
    ]
    world.defaults = replace(DEFAULTS, scrapers=Scrapers.parse(json.dumps(peers), ROLES))
    # Without their owner: there is no such run, and what it left behind would be collected.
    return [
        {key: policy[key] for key in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": name, "labels": policy["metadata"]["labels"]}}
        for name, policy in world.to_servers().objects["NetworkPolicy"].items()
    ]


def test_the_networks_fences_are_those_that_the_run_asks_for(
    kubectl: Kubectl, elsewhere: Kubectl, opened: Kubectl, pod: Pod
) -> None:
    here = {str(role): pod(str(role), SERVE, labels=labels.run_labels("run", role)) for role in Role}
    here["stranger"] = pod("stranger", SERVE)
    here["neighbour"] = pod("neighbour", SERVE, labels=labels.run_labels("another", Role.GYM))
    there = {name: pod(name, SERVE) for name in ("scraper", "visitor", "in-range")}
    kubectl.apply(*here.values())
    elsewhere.apply(*there.values())
    opened.apply(pod("in-namespace", SERVE))
    homes = {**dict.fromkeys(here, kubectl), **dict.fromkeys(there, elsewhere), "in-namespace": opened}
    for home in (kubectl, elsewhere, opened):
        home.run("wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s", timeout=200)
    addresses = {name: home.get("pod", name)["status"]["podIP"] for name, home in homes.items()}
    ports = {name: PORTS.get(name, wiring.GYM_PORT) for name in homes}
    targets = {name: (address, ports[name]) for name, address in addresses.items()}
    targets |= {f"{name}:{OTHER}": (addresses[name], OTHER) for name in ("trainer", "sandbox")}

    def others(client: str) -> set[str]:
        return {name for name in targets if name.partition(":")[0] != client}

    def reached(client: str) -> set[str]:
        program = ("exec", client, "--", "python3.13", "-c", REACH, json.dumps(targets))
        return others(client) & set(json.loads(homes[client].run(*program, timeout=60)))

    def against(expected: dict[str, set[str]]) -> dict[str, Object]:
        """What each client reaches and shouldn't, and the other way around."""
        with ThreadPoolExecutor(4) as pool:
            found = dict(zip(homes, pool.map(reached, homes), strict=True))
        return {
            client: {"reaches": sorted(found[client] - wanted), "does not reach": sorted(wanted - found[client])}
            for client, wanted in expected.items()
            if found[client] != wanted
        }

    def settle(expected: dict[str, set[str]]) -> None:
        end = time.monotonic() + SECONDS
        while wrong := against(expected):
            assert time.monotonic() < end, json.dumps(wrong, indent=1)

    settle({client: others(client) for client in homes})  # without a policy

    kubectl.apply(*_policies(opened.namespace, elsewhere.namespace, addresses["in-range"]))
    settle(
        {
            client: others(client) & (ANSWERS.get(client, set()) | (OUTSIDE - CLOSED.get(client, set())))
            for client in homes
        }
    )
