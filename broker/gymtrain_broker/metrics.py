"""The broker's metrics, as GET /metrics shows them."""

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gymtrain_broker.policy.state import State

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)


class Metrics:
    """What the broker counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.claim_seconds = Histogram(
            "gymtrain_broker_claim_seconds",
            "Time from a request to its running sandbox, by what it found when its turn came: ready, starting, none.",
            ["found"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "gymtrain_broker_queue_seconds",
            "Time that requests waited for their turn.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.claims = Counter(
            "gymtrain_broker_claims_total",
            "Requests that had their turn, by what they found: ready (a hit), starting, none.",
            ["found"],
            registry=registry,
        )
        self.ended = Counter(
            "gymtrain_broker_ended_total",
            "Sandboxes and requests that ended, by reason: Closed, Expired, Idle, Abandoned, Deadline, Rejected, "
            "Unschedulable, Restarted, UncountedDisk, Exited, PodDeleted, or the kubelet's own, such as OOMKilled.",
            ["reason"],
            registry=registry,
        )
        self.wasted = Counter(
            "gymtrain_broker_wasted_total",
            "Sandboxes made ahead that were deleted unused, by purpose.",
            ["made_for"],
            registry=registry,
        )
        self.made = Counter(
            "gymtrain_broker_made_total",
            "Pods made, by purpose: Claim (a request), Pool, LookAhead, PrePull (its image alone).",
            ["made_for"],
            registry=registry,
        )
        self.resets = Counter(
            "gymtrain_broker_resets_total", "Sandboxes that were restarted for another task.", registry=registry
        )
        self.pull_failures = Counter(
            "gymtrain_broker_pull_failures_total",
            "Sandboxes made ahead that were given up because their image could not be pulled, by reason: "
            "throttled, or the kubelet's own, such as ErrImagePull.",
            ["reason"],
            registry=registry,
        )
        self.api_requests = Counter(
            "gymtrain_broker_api_requests_total",
            "Requests to the API server, by verb and status.",
            ["method", "code"],
            registry=registry,
        )
        self.relists = Counter(
            "gymtrain_broker_relists_total", "Times that all pods were listed again.", registry=registry
        )

    def watch(self, state: State) -> None:
        """Adds the metrics that are read from the state when somebody asks."""
        self.registry.register(_Now(state))

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Now(Collector):
    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """Yields the current values."""
        state = self._state
        yield GaugeMetricFamily("gymtrain_broker_queued", "Requests that wait for their turn.", value=len(state.queue))
        claims = GaugeMetricFamily(
            "gymtrain_broker_sandboxes", "Sandboxes by state: Queued, Starting, Running.", labels=["state"]
        )
        for name, count in sorted(
            Count(str(claim.state) for claim in state.claims.values() if not claim.final).items()
        ):
            claims.add_metric([name], count)
        yield claims
        pods = GaugeMetricFamily(
            "gymtrain_broker_pods",
            "Sandbox pods by state: leased, ready (free), starting, resetting, pulling (an image ahead), ending.",
            labels=["state"],
        )
        for name, count in sorted(Count(map(state.word, state.pods.values())).items()):
            pods.add_metric([name], count)
        yield pods
        announced = "Announced tasks that have not asked for their sandbox."
        yield GaugeMetricFamily("gymtrain_broker_announced", announced, value=len(state.announced))
