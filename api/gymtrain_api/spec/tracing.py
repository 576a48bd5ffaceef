"""`spec.tracing`: traces of rollouts."""

from pydantic import Field

from gymtrain_api.spec.base import OTLP_PATTERN, SecretKeyRef, Spec

SAMPLING_RATE_PER_MILLION = 10_000


class Tracing(Spec):
    """Where traces of rollouts go (OpenTelemetry), and of how many."""

    endpoint: str = Field(
        pattern=OTLP_PATTERN,
        max_length=2048,
        description="URL of an OTLP receiver over HTTP (protobuf), such as a collector's, Jaeger's or Tempo's: "
        "http://collector.observability.svc:4318. /v1/traces is added to it. Only the run's gateway calls it.",
    )
    sampling_rate_per_million: int = Field(
        SAMPLING_RATE_PER_MILLION,
        ge=0,
        le=1_000_000,
        description="Rollouts that are traced, of a million. 0 turns tracing off, also where the defaults of cluster "
        "or namespace turn it on.",
    )
    headers_secret: SecretKeyRef | None = Field(
        None,
        description="Secret key with headers for the receiver, such as credentials, in the form of "
        "OTEL_EXPORTER_OTLP_HEADERS: NAME=VALUE, separated by commas, values percent-encoded. Only the gateway gets "
        "it.",
    )
