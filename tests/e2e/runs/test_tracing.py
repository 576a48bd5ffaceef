"""Rollouts of a run as traces in a collector, with spans of the real trainer, Gym servers, gateway and vLLM."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support import otlp
from tests.support.images import image
from tests.support.kubectl import Kubectl, eventually
from tests.support.otlp import Received
from tests.support.restricted import restricted_spec
from tests.support.runs import tiny_run

MINUTES = 60
SERVICES = {
    "gymtrain-trainer",
    "gymtrain-gateway",
    "gymtrain-inference",
    "gymtrain-gym-policy_model",
    "gymtrain-gym-reasoning_gym",
    "gymtrain-gym-reasoning_gym_simple_agent",
}


def _collector() -> list[dict[str, Any]]:
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


def _traces(kubectl: Kubectl) -> list[list[Received]]:
    """What has arrived, by trace."""
    found: dict[str, list[Received]] = defaultdict(list)
    for line in kubectl.logs("collector", "collector").splitlines():
        span = Received(**json.loads(line))
        found[span.trace].append(span)
    return list(found.values())


@pytest.fixture
def complete(operator: Kubectl, kubectl: Kubectl) -> Kubectl:
    """A run that is done, every rollout of which was traced."""
    kubectl.apply(*_collector())
    kubectl.run("wait", "--for=condition=Ready", "pod/collector", "--timeout=120s", timeout=150)
    run = tiny_run("traced")
    run["spec"]["tracing"] = {
        "endpoint": f"http://collector.{kubectl.namespace}:4318",
        "samplingRatePerMillion": 1_000_000,
    }
    kubectl.apply(run)
    kubectl.wait_condition("traced", "Complete", 12 * MINUTES)
    return kubectl


def test_a_rollout_is_one_trace_from_the_trainer_to_vllm(complete: Kubectl) -> None:
    def whole() -> list[Received]:
        """The first trace with spans of all parts, each one's parent among them: parts send at moments of their own."""
        return next(
            (
                spans
                for spans in _traces(complete)
                if {one.service for one in spans} >= SERVICES
                and {one.parent for one in spans} - {""} <= {one.id for one in spans}
            ),
            [],
        )

    spans = eventually(whole, f"a trace has spans of {sorted(SERVICES)}", 60)
    print("\n".join(otlp.tree(spans)))  # no span is missing on the way: each one's parent is there
    (root,) = (span for span in spans if not span.parent)
    assert (root.service, root.name) == ("gymtrain-trainer", "rollout")
    assert str(root.attributes["gymtrain.weight_version"]).startswith("traced:1:")
    by_id = {span.id: span for span in spans}
    in_vllm = [span for span in spans if span.service == "gymtrain-inference"]
    assert {by_id[span.parent].name for span in in_vllm} == {"generate"}
    assert {span.resource["gymtrain.run"] for span in spans} == {"traced"}
    pods = {str(span.resource["k8s.pod.name"]) for span in spans}
    assert all(pod.startswith("traced-") for pod in pods)

    roots = [span for spans in _traces(complete) for span in spans if not span.parent]
    assert {span.name for span in roots} == {"rollout"}, "only the trainer begins traces"
    steps = tiny_run("traced")["spec"]["trainer"]["config"]["max_steps"]
    assert len(roots) >= 8 * steps, "every rollout was traced"
