"""What the pods of a run get so that rollouts are traced: OpenTelemetry's own variables, and nothing where it is off.

All send their spans to the gateway, which sends them on: the collector's address and credentials are in its pods alone,
and no NetworkPolicy has to open anything.
"""

from gymtrain_api import labels, names, wiring
from gymtrain_api.defaults import tracing_of
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext

_PATH = "/v1/traces"
_POD_NAME = "GYMTRAIN_POD_NAME"


def env(run: RunContext, role: labels.Role, service: str | None = None) -> list[Object]:
    """Returns the variables of a role's main container. `service`: its name in traces, where it isn't the role's."""
    tracing = tracing_of(run.spec, run.applied)
    if tracing is None:
        return []
    endpoint = f"http://{names.gateway_pods(run.name)}:{wiring.GATEWAY_PORT}{_PATH}"
    headers: list[Object] = []
    if role == labels.Role.GATEWAY:
        endpoint = tracing.endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        if tracing.headers_secret is not None:
            secret = {"name": tracing.headers_secret.name, "key": tracing.headers_secret.key}
            headers = [{"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": secret}}]
    return [
        {"name": _POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "value": endpoint},
        {"name": "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "value": "http/protobuf"},
        *headers,
        {"name": "OTEL_SERVICE_NAME", "value": f"gymtrain-{service or role}"},
        {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": f"k8s.pod.name=$({_POD_NAME})"},
        *_sampler(role, tracing.sampling_rate_per_million),
    ]


def _sampler(role: labels.Role, per_million: int) -> list[Object]:
    """Only the trainer begins traces. What else is called outside of one, such as vLLM by people, is none."""
    if role != labels.Role.TRAINER:
        return [{"name": "OTEL_TRACES_SAMPLER", "value": "parentbased_always_off"}]
    return [
        {"name": "OTEL_TRACES_SAMPLER", "value": "parentbased_traceidratio"},
        {"name": "OTEL_TRACES_SAMPLER_ARG", "value": f"{per_million / 1_000_000:f}"},
    ]
