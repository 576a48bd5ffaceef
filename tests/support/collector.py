"""A collector of OpenTelemetry's traces in a pod: it writes each span that it receives to its log."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support import otlp
from tests.support.images import image
from tests.support.kubectl import Kubectl
from tests.support.otlp import Received
from tests.support.restricted import restricted_spec


def start(kubectl: Kubectl) -> None:
    """Starts it in the namespace of `kubectl`, and waits until it is ready."""
    kubectl.apply(*_objects())
    kubectl.run("wait", "--for=condition=Ready", "pod/collector", "--timeout=120s", timeout=150)


def every_rollout(kubectl: Kubectl) -> dict[str, Any]:
    """spec.tracing of a run that sends it all its rollouts."""
    return {"endpoint": f"http://collector.{kubectl.namespace}.svc:4318", "samplingRatePerMillion": 1_000_000}


def traces(kubectl: Kubectl) -> list[list[Received]]:
    """What has arrived, by trace."""
    found: dict[str, list[Received]] = defaultdict(list)
    for line in kubectl.logs("collector", "collector").splitlines():
        span = Received(**json.loads(line))
        found[span.trace].append(span)
    return list(found.values())


def _objects() -> list[dict[str, Any]]:
    """A pod that writes what it receives to its log, and its Service."""
    labels = {"app": "collector"}
    container = {
        "name": "collector",
        "image": image("gateway"),
        "command": ["python", "/program/otlp.py"],
        "ports": [{"containerPort": 4318}],
        "readinessProbe": {"tcpSocket": {"port": 4318}, "periodSeconds": 1},
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
    }
    volumes = [{"name": "program", "configMap": {"name": "collector"}}]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "collector"},
            "data": {"otlp.py": Path(otlp.__file__).read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "collector", "labels": labels},
            "spec": restricted_spec(container, volumes=volumes, terminationGracePeriodSeconds=0),
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "collector"},
            "spec": {"selector": labels, "ports": [{"port": 4318}]},
        },
    ]
