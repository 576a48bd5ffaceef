"""KEDA on an API server of the tests: its kinds, its operator and its API of external metrics; and a Prometheus whose
answers a test gives."""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.support.apiserver import ApiServer, free_port
from tests.support.external_metrics import register
from tests.support.go_controller import admin_of, install_crds, make_certificate
from tests.support.json_server import answering

_ANYBODY = "system:anonymous"  # whom the API server's requests come from here: it has no certificate for them


def start(server: ApiServer, folder: Path) -> None:
    """Starts it beside the API server. `folder`: of its files."""
    install_crds(server, "keda", "keda.yaml", "KEDA")
    make_certificate(folder, "keda")
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    asked, health, served, metrics = (free_port() for _ in range(4))
    server.run(
        "keda-operator",
        f"--kubeconfig={server.kubeconfig}",
        f"--cert-dir={folder}",
        "--metrics-bind-address=0",
        f"--metrics-service-bind-address=127.0.0.1:{asked}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        "--zap-log-level=info",
    )
    access = [
        f"--{what}kubeconfig={server.kubeconfig}" for what in ("", "lister-", "authentication-", "authorization-")
    ]
    server.run(
        "keda-adapter",
        *access,
        "--authentication-skip-lookup",
        f"--cert-dir={folder}",
        f"--secure-port={served}",
        f"--port={metrics}",
        f"--metrics-service-address=127.0.0.1:{asked}",
    )
    rules = [
        {"apiGroups": ["external.metrics.k8s.io"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["/apis/external.metrics.k8s.io*", "/openapi/*"], "verbs": ["get"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "keda-metrics"}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "keda-metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "keda-metrics"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": _ANYBODY}],
    }
    admin_of(server).apply(role | {"rules": rules}, binding)
    register(server, served)


class Answers:
    """What Prometheus answers to instant queries; use as a context manager.

    Attributes:
        value: of the only series; None: there is none.
        queries: that were asked.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self.queries: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.url = f"http://127.0.0.1:{self._stack.enter_context(answering(self._answer))}"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _answer(self, path: str) -> tuple[int, object]:
        self.queries.update(parse_qs(urlsplit(path).query).get("query", []))
        sample = [] if self.value is None else [{"metric": {}, "value": [time.time(), str(self.value)]}]
        return 200, {"status": "success", "data": {"resultType": "vector", "result": sample}}
