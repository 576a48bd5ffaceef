import time
from collections.abc import Callable
from typing import Any

from tests.support.kubectl import Kubectl

SLEEP = "import time; time.sleep(600)"


def test_a_pod_resolves_the_api_server(
    kubectl: Kubectl, pod: Callable[..., dict[str, Any]], python: Callable[[str, str], str]
) -> None:
    kubectl.apply(pod("client", SLEEP))
    kubectl.run("wait", "--for=condition=Ready", "pod/client", "--timeout=90s", timeout=120)
    service = kubectl.run("get", "service", "kubernetes", "--namespace=default", "-o", "jsonpath={.spec.clusterIP}")

    found = python("client", "import socket; print(socket.gethostbyname('kubernetes.default.svc'))")

    assert found == service


def test_a_headless_name_resolves_at_once_although_it_was_asked_for_before(
    kubectl: Kubectl, pod: Callable[..., dict[str, Any]], python: Callable[[str, str], str]
) -> None:
    """The pods of an indexed Job look for each other before they exist; a remembered "no" would stall them."""
    peers = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "late"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"}, "spec": peers}
    kubectl.apply(service, pod("early", SLEEP, subdomain="peers", hostname="early"))
    kubectl.run("wait", "--for=condition=Ready", "pod/early", "--timeout=90s", timeout=120)
    lookup = "import socket; print(socket.gethostbyname('late.peers'))"
    assert python("early", lookup).startswith("failed:")

    kubectl.apply(pod("late", SLEEP, subdomain="peers", hostname="late"))
    kubectl.run("wait", "--for=condition=Ready", "pod/late", "--timeout=90s", timeout=120)
    ready = time.monotonic()
    address = kubectl.get("pod", "late")["status"]["podIP"]
    while (found := python("early", lookup)) != address:
        assert time.monotonic() - ready < 3, found
