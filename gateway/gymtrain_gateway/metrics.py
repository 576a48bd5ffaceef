"""The gateway's metrics, as GET /metrics shows them."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gymtrain_gateway.dispatch import Dispatcher
from gymtrain_gateway.ledger import Ledger
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.prompts import UsedPrompts

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """What calls add to."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.seconds = Histogram(
            "gymtrain_gateway_request_seconds",
            "Time of requests from their arrival to the last byte of the answer.",
            ["route", "status"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "gymtrain_gateway_prompt_tokens_total", "Tokens of the prompts of chat completions.", registry=registry
        )
        self.generated_tokens = Counter(
            "gymtrain_gateway_generated_tokens_total", "Tokens that chat completions generated.", registry=registry
        )
        self.turns = Counter(
            "gymtrain_gateway_turns_total",
            "Chat completions by relation to earlier turns: first (no earlier turn), exact, forked.",
            ["history"],
            registry=registry,
        )
        self.forks = Counter(
            "gymtrain_gateway_forks_total",
            "Chat completions whose history the template wrote differently, by reason: rewritten, changed, edited, "
            "dropped, no_end_of_turn, multimodal, refused.",
            ["reason"],
            registry=registry,
        )
        self.replaced_sampling = Counter(
            "gymtrain_gateway_replaced_sampling_total",
            "Policy calls that asked for other sampling settings and got the run's, by setting.",
            ["setting"],
            registry=registry,
        )
        self.constrained = Counter(
            "gymtrain_gateway_constrained_total",
            "Policy calls with a grammar-constrained answer (tool_choice, JSON schemas), by kind of grammar: json, "
            "regex, choice, grammar, json_object, structural_tag.",
            ["by"],
            registry=registry,
        )
        self.retries = Counter(
            "gymtrain_gateway_retries_total",
            "Tries that failed because of a pod, by reason: connection, status, aborted, garbled.",
            ["reason"],
            registry=registry,
        )
        self.refused = Counter(
            "gymtrain_gateway_refused_total",
            "Requests that the gateway or vLLM refused, by status.",
            ["status"],
            registry=registry,
        )
        self.open = Gauge("gymtrain_gateway_open_requests", "Open requests.", registry=registry)

    def watch(self, pods: Pods, dispatcher: Dispatcher, ledger: Ledger, prompts: UsedPrompts) -> None:
        """Adds what is read when it is asked for."""
        self.registry.register(_State(pods, dispatcher, ledger, prompts))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)


class _State(Collector):
    def __init__(self, pods: Pods, dispatcher: Dispatcher, ledger: Ledger, prompts: UsedPrompts) -> None:
        self._pods = pods
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._prompts = prompts

    def collect(self) -> Iterable[Metric]:
        """Yields the current values."""
        yield _gauge("queued_requests", "Requests that wait for a vLLM pod.", self._dispatcher.queued)
        yield _gauge("admissible_pods", "vLLM pods that get requests.", len(self._pods.admissible()))
        yield _gauge("ledger_entries", "Model calls in the ledger.", len(self._ledger))
        yield _gauge("ledger_unasked_entries", "Calls that the trainer has not asked for yet.", self._ledger.unasked)
        yield CounterMetricFamily(
            "gymtrain_gateway_ledger_forgotten",
            "Model calls that the ledger dropped for lack of room before the trainer asked for them.",
            value=self._ledger.forgotten,
        )
        yield _gauge("prompt_cache_tokens", "Tokens of recent prompts kept.", self._prompts.held)
        flights = GaugeMetricFamily(
            "gymtrain_gateway_in_flight_requests", "Requests that a vLLM pod works on.", labels=["pod"]
        )
        versions = GaugeMetricFamily(
            "gymtrain_gateway_pod_info",
            "Weight version of each vLLM pod, and whether it gets requests; GET /gymtrain/pods says why not.",
            labels=["pod", "version", "admissible"],
        )
        for pod, admission in self._pods.admissions.items():
            flights.add_metric([pod], self._dispatcher.in_flight.get(pod, 0))
            admissible = "true" if admission.admissible else "false"
            versions.add_metric([pod, admission.version or "", admissible], 1)
        yield flights
        yield versions


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gymtrain_gateway_{name}", text, value=value)
