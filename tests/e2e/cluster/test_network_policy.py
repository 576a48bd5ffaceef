"""Judged by response bodies: on some networks something answers at every address, so a connection proves nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kubectl import Kubectl, eventually

BODY = "the server itself"
SERVER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{BODY}")
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
SLEEP = "import time; time.sleep(600)"
GET = "import urllib.request; print(urllib.request.urlopen('http://{}:8080', timeout=5).read().decode())"
SECONDS = 60  # a look is two commands in pods that get what CPU is left
POLICY = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}


@pytest.fixture
def ask(
    kubectl: Kubectl, pod: Callable[..., dict[str, Any]], python: Callable[[str, str], str]
) -> Callable[[str], list[str]]:
    """A server behind a Service, a friend and a stranger; asks for the server as one of the two, both ways."""
    server = pod("server", SERVER)
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    server["spec"]["containers"][0]["readinessProbe"] = probe
    ports = {"selector": {"app": "server"}, "ports": [{"port": 8080}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"}, "spec": ports}
    kubectl.apply(server, service, pod("friend", SLEEP, labels={"role": "friend"}), pod("stranger", SLEEP))
    kubectl.run("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s", timeout=120)
    address = kubectl.get("pod", "server")["status"]["podIP"]

    def answers(client: str) -> list[str]:
        return [python(client, GET.format(host)) for host in (address, "server")]

    return answers


def test_default_deny_blocks_and_a_label_lets_in(kubectl: Kubectl, ask: Callable[[str], list[str]]) -> None:
    open_to = [BODY, BODY]
    eventually(lambda: ask("friend") == open_to and ask("stranger") == open_to, "without a policy all get in", SECONDS)

    deny = {"podSelector": {}, "policyTypes": ["Ingress"]}
    kubectl.apply(POLICY | {"metadata": {"name": "deny"}, "spec": deny})
    eventually(lambda: BODY not in ask("friend") + ask("stranger"), "default deny keeps all out", SECONDS)

    sources = [{"podSelector": {"matchLabels": {"role": "friend"}}}]
    allow = {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"from": sources}]}
    kubectl.apply(POLICY | {"metadata": {"name": "allow"}, "spec": allow})
    eventually(lambda: ask("friend") == open_to, "the label lets the friend in", SECONDS)
    assert BODY not in ask("stranger")


def test_closed_egress_reaches_dns_only(
    kubectl: Kubectl, ask: Callable[[str], list[str]], python: Callable[[str, str], str]
) -> None:
    """What sandboxes live under: names resolve, nothing else answers."""
    dns = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    egress = {
        "podSelector": {"matchLabels": {"app": "stranger"}},
        "policyTypes": ["Egress"],
        "egress": [{"to": [dns], "ports": ports}],
    }
    kubectl.apply(POLICY | {"metadata": {"name": "closed"}, "spec": egress})

    eventually(lambda: BODY not in ask("stranger"), "closed egress keeps the stranger in", SECONDS)
    eventually(lambda: ask("friend") == [BODY, BODY], "and nobody else", SECONDS)
    service = kubectl.get("service", "server")["spec"]["clusterIP"]
    assert python("stranger", "import socket; print(socket.gethostbyname('server'))") == service
