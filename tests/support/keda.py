"""KEDA on an API server of the tests: its kinds, its operator and its API of external metrics; and a Prometheus whose
answers a test gives."""

import json
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.support.apiserver import ApiServer, free_port
from tests.support.external_metrics import register
from tests.support.go_controller import admin_of, install_crds, make_certificate

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

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.queries.update(parse_qs(urlsplit(self.path).query).get("query", []))
                sample = [] if outer.value is None else [{"metric": {}, "value": [time.time(), str(outer.value)]}]
                body = {"status": "success", "data": {"resultType": "vector", "result": sample}}
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
