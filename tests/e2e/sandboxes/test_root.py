"""A run with root, open network ranges and a RuntimeClass, under baseline Pod Security: what its sandboxes may do."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubectl import Kubectl
from tests.support.sandboxes import IMAGE, Sandboxes, idle_run, running

pytestmark = pytest.mark.faults

OPEN, SHUT = 8001, 8002

# What SWE images want, and then what no sandbox gets.
ROOT = """
id -u
install -d -o 1000 -g 1000 /srv/of-another && stat -c %u /srv/of-another
mount -t tmpfs none /mnt 2>/dev/null && echo mounted
unshare --net true 2>/dev/null && echo unshared
mknod /tmp/disk b 8 0 2>/dev/null && echo made a device
date -s @$(date +%s) >/dev/null 2>&1 && echo set the clock
echo x 2>/dev/null > /proc/sys/kernel/hostname && echo wrote a sysctl
true
"""
LISTEN = f"python3 -m http.server {OPEN} & exec python3 -m http.server {SHUT}"
# Prints which of the addresses can be connected to.
CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        print(address)
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def namespace(baseline_namespace: Kubectl) -> Kubectl:
    """One that admits root."""
    return baseline_namespace


@pytest.fixture(scope="module")
def runtime_class(kubeconfig: str, namespace: Kubectl) -> Iterator[str]:
    """A RuntimeClass of the runtime's usual handler: it changes nothing, but that it was asked for can be seen."""
    name = f"gymtrain-{namespace.namespace}"
    namespace.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runc"}
    )
    yield name
    namespace.run("delete", "runtimeclass", name)


@pytest.fixture(scope="module")
def listener(namespace: Kubectl) -> str:
    """Address of a pod that listens at two ports."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", LISTEN]}
    spec = {"containers": [container | {"readinessProbe": {"tcpSocket": {"port": SHUT}, "periodSeconds": 1}}]}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "listener"}, "spec": spec})
    namespace.run("wait", "--for=condition=Ready", "pod/listener", "--timeout=90s", timeout=120)
    return str(namespace.get("pod", "listener")["status"]["podIP"])


@pytest.fixture(scope="module")
def boxes(operator: Kubectl, namespace: Kubectl, runtime_class: str, listener: str) -> Sandboxes:
    """Sandboxes of the run."""
    network = {"mode": "EgressAllowed", "cidrs": [f"{listener}/32"], "ports": [OPEN]}
    return idle_run(namespace, "root", root=True, runtimeClassName=runtime_class, network=network)


@pytest.fixture(scope="module")
def box(boxes: Sandboxes) -> dict[str, Any]:
    """One of them."""
    return running(boxes.create(IMAGE, user="root"))


def test_root_is_root_in_its_container_alone(boxes: Sandboxes, box: dict[str, Any]) -> None:
    done = boxes.run(box, ROOT, user="root")
    assert done["out"].split("\n") == ["0", "1000", ""], done
    assert boxes.run(box, "id -u", user="nobody")["out"] == "65534\n"


def test_the_runtime_class_is_the_pods(namespace: Kubectl, box: dict[str, Any], runtime_class: str) -> None:
    assert namespace.get("pod", box["podName"])["spec"]["runtimeClassName"] == runtime_class


def test_only_what_the_spec_opens_can_be_reached(
    namespace: Kubectl, boxes: Sandboxes, box: dict[str, Any], listener: str
) -> None:
    api = json.loads(namespace.run("get", "service", "kubernetes", "-n", "default", "-o", "json"))["spec"]["clusterIP"]
    targets = [f"{listener}:{OPEN}", f"{listener}:{SHUT}", f"{api}:443", "169.254.169.254:80"]
    done = boxes.run(box, f"python3 -c '{CONNECT}' {' '.join(targets)}")
    assert done["out"].split() == [f"{listener}:{OPEN}"], done
    names = boxes.run(box, "getent hosts kubernetes.default.svc.cluster.local")
    assert names["out"].split()[:1] == [api], names


def test_user_namespaces_are_given_or_it_is_said_what_is_missing(
    namespace: Kubectl, boxes: Sandboxes, box: dict[str, Any]
) -> None:
    """The last one: it changes the run."""
    before = namespace.pods("root", role="broker")[0]["metadata"]["name"]
    change = {"spec": {"sandboxes": {"hostUsers": False}}}
    namespace.run("patch", "gtr", "root", "--type=merge", "-p", json.dumps(change))
    namespace.run("wait", "--for=delete", f"pod/{before}", "--timeout=90s", timeout=120)
    namespace.run("rollout", "status", "deployment/root-broker", "--timeout=90s", timeout=120)
    found = boxes.create(IMAGE, user="root", timeoutSeconds=30)
    if found["state"] == "Running":
        inside, outside, _ = boxes.run(found, "cat /proc/self/uid_map", user="root")["out"].split()
        assert inside == "0"
        assert int(outside) > 0, "root in the sandbox is nobody on the node"
    else:
        assert (found["state"], found["reason"]) == ("Failed", "Deadline")
        assert "user namespaces" in found["message"]
        assert found["podName"] in found["message"]
