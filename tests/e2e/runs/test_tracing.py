"""Rollouts of a run as traces in a collector, with spans of the real trainer, Gym servers, gateway and vLLM."""

import pytest

from tests.support import collector, otlp
from tests.support.kubectl import Kubectl, eventually
from tests.support.otlp import Received
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


@pytest.fixture
def complete(operator: Kubectl, kubectl: Kubectl) -> Kubectl:
    """A run that is done, every rollout of which was traced."""
    collector.start(kubectl)
    run = tiny_run("traced")
    run["spec"]["tracing"] = collector.every_rollout(kubectl)
    kubectl.apply(run)
    kubectl.wait_condition("traced", "Complete", 12 * MINUTES)
    return kubectl


def test_a_rollout_is_one_trace_from_the_trainer_to_vllm(complete: Kubectl) -> None:
    def whole() -> list[Received]:
        """The first trace with spans of all parts, each one's parent among them: parts send at moments of their own."""
        return next(
            (
                spans
                for spans in collector.traces(complete)
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

    roots = [span for spans in collector.traces(complete) for span in spans if not span.parent]
    assert {span.name for span in roots} == {"rollout"}, "only the trainer begins traces"
    steps = tiny_run("traced")["spec"]["trainer"]["config"]["max_steps"]
    assert len(roots) >= 8 * steps, "every rollout was traced"
