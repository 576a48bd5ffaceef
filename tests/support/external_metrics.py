"""The API external.metrics.k8s.io of an API server of the tests, with values that a test sets: what prometheus-adapter
or KEDA serve in a cluster."""

from contextlib import ExitStack
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.apiserver import ApiServer, binary
from tests.support.json_server import answering
from tests.support.kubectl import PATIENCE, Kubectl, eventually

_GROUP, _VERSION = "external.metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{_GROUP}/{_VERSION}"
_NAMESPACE = "external-metrics"


def register(server: ApiServer, port: int) -> None:
    """Has the API server pass requests for external metrics on to this port of the machine."""
    admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
    admin.run("create", "namespace", _NAMESPACE)
    # The API server asks a Service of this kind by its name alone, which needs no cluster network.
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"}, "spec": spec}
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{_VERSION}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "version": _VERSION,
            "service": {"namespace": _NAMESPACE, "name": "metrics", "port": port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    admin.apply(service, api)
    wait = ("wait", "--for=condition=Available", "apiservice", f"{_VERSION}.{_GROUP}", "--timeout=5s")
    eventually(lambda: admin.run(*wait, check=False), "the API of external metrics is served", PATIENCE)


class ExternalMetrics:
    """Use as a context manager. A metric without a value is an error, as it is where Prometheus has no such series."""

    def __init__(self, server: ApiServer) -> None:
        self._api = server
        self._stack = ExitStack()
        self.values: dict[tuple[str, str], int] = {}  # by namespace and metric
        self.selectors: set[str] = set()  # that were asked for

    def __enter__(self) -> Self:
        register(self._api, self._stack.enter_context(answering(self._answer, self._api.server_tls())))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _answer(self, path: str) -> tuple[int, dict[str, object]]:
        address = urlsplit(path)
        if address.path == _ROOT:
            resource = {"name": "externalmetrics", "singularName": "", "namespaced": True, "verbs": ["get"]}
            resources = [resource | {"kind": "ExternalMetricValueList"}]
            return 200, {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{_GROUP}/{_VERSION}",
                "resources": resources,
            }
        parts = unquote(address.path).removeprefix(f"{_ROOT}/namespaces/").split("/")
        value = self.values.get((parts[0], parts[1])) if len(parts) == 2 else None
        if value is None:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}
        self.selectors.update(parse_qs(address.query).get("labelSelector", []))
        item = {
            "metricName": parts[1],
            "metricLabels": {},
            "timestamp": "2026-01-01T00:00:00Z",
            "value": str(value),
        }
        return 200, {
            "kind": "ExternalMetricValueList",
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "metadata": {},
            "items": [item],
        }
