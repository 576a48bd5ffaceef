"""Prometheus metrics of the operator itself; those about runs are in `run_metrics`."""

from prometheus_client import Counter, Gauge, Histogram

RECONCILE_SECONDS = Histogram(
    "gymtrain_operator_reconcile_seconds",
    "Time of one reconcile of one run, by kind: full (everything was read), tick (only the trainer was asked).",
    ["kind"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0),
)
RECONCILE_ERRORS = Counter(
    "gymtrain_operator_reconcile_errors_total", "Reconciles that ended in an error, by its class.", ["reason"]
)
STATUS_WRITES = Counter("gymtrain_operator_status_writes_total", "Status writes.")
QUEUE = Gauge("gymtrain_operator_queue_length", "Runs that wait to be reconciled.")
API_REQUESTS = Counter(
    "gymtrain_operator_api_requests_total",
    "Requests to the API server without watches, by method and status; code is none if there was no answer.",
    ["method", "code"],
)
API_SECONDS = Histogram(
    "gymtrain_operator_api_request_seconds",
    "Time of requests to the API server.",
    ["method"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0),
)
API_WAITING = Counter(
    "gymtrain_operator_api_waiting_seconds_total",
    "Time that requests to the API server waited for their turn, by --kube-api-qps or by its own Retry-After.",
)
WATCH_STARTS = Counter(
    "gymtrain_operator_watch_starts_total",
    "Watches of what runs own that began anew: at a start, and where one lost its place.",
    ["kind"],
)
LEADER = Gauge("gymtrain_operator_leader", "1 while this replica is the leader, or works without election.")
RESYNC_TIME = Gauge("gymtrain_operator_last_resync_timestamp_seconds", "When all runs were last listed.")
