"""A cluster that assigns users, as OpenShift's restricted-v2 does: a webhook of this test's own gives each pod of the
namespace a user that no image knows, and refuses pods that name one."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.go_controller import call_here, make_certificate
from tests.support.json_server import JsonHandler, serving
from tests.support.kubectl import Kubectl, eventually
from tests.support.node import require_own_node
from tests.support.runs import tiny_run

pytestmark = pytest.mark.large

MINUTES = 60
USER = 1000730000  # of a range as OpenShift gives each project
_FIXED = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")


def _named(pod: dict[str, Any]) -> list[str]:
    """What a pod's containers and itself say of users."""
    spec = pod["spec"]
    places = [spec, *spec.get("initContainers", []), *spec["containers"]]
    return [field for place in places for field in _FIXED if field in (place.get("securityContext") or {})]


class _Assigns(JsonHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod, answer = review["request"]["object"], {"uid": review["request"]["uid"], "allowed": True}
        if named := _named(pod):
            answer |= {"allowed": False, "status": {"message": f"users are assigned here: {', '.join(named)}"}}
        else:
            context = (pod["spec"].get("securityContext") or {}) | {"runAsUser": USER, "fsGroup": USER}
            patch = [{"op": "add", "path": "/spec/securityContext", "value": context}]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        self.answer(200, {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})


@pytest.fixture
def assigning(kubeconfig: str, kubectl: Kubectl, tmp_path: Path) -> Iterator[None]:
    require_own_node(kubeconfig)  # its API server calls a webhook on this machine
    make_certificate(tmp_path, "assigns-users")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with serving(_Assigns, tls) as port:
        webhook = {
            "name": "users.gymtrain.dev",
            "clientConfig": {"service": {"path": "/"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
        }
        call_here(webhook, port, tmp_path)
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        name = f"users-{kubectl.namespace}"
        kubectl.apply(head | {"metadata": {"name": name}, "webhooks": [webhook]})
        yield
        kubectl.run("delete", "mutatingwebhookconfiguration", name)


def test_a_run_completes_as_users_that_the_cluster_assigns(
    operator: Kubectl, kubectl: Kubectl, assigning: None
) -> None:
    head = {"apiVersion": "gymtrain.dev/v1alpha1", "kind": "GymTrainingDefaults"}
    kubectl.apply(head | {"metadata": {"name": "default"}, "spec": {"userIds": "Assigned"}})
    kubectl.apply(tiny_run("assigned", max_steps=60, save_steps=20))
    eventually(lambda: kubectl.pods("assigned", role="trainer"), "it has passed preflight", 5 * MINUTES)
    for role in ("trainer", "inference", "gym", "gateway"):
        pod = kubectl.pods("assigned", role=role)[0]
        assert pod["spec"]["securityContext"]["runAsUser"] == USER, role
    kubectl.wait_condition("assigned", "Complete", 8 * MINUTES)
    status = kubectl.get("gymtrainingrun", "assigned")["status"]
    assert status["attempt"] == 1
    assert status["progress"]["step"] == 60
