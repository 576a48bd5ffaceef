"""The dashboard of the operator."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dev.dashboards.parts import Query, Shown, build

# A process that doesn't lead, or that led before, is not what these are about.
_LEADER = "and on (instance) gymtrain_operator_leader == 1"


def dashboard() -> Dashboard:
    """How the operator is, and what its runs need."""
    runs = [
        Shown(
            "Runs by state",
            [Query("sum by (state) (gymtrain_operator_runs)", "{{state}}")],
            "As status.state.",
            kind="stacked",
        ),
        Shown(
            "Runs by health",
            [
                Query(
                    "count by (reason) (max by (namespace, run, reason) "
                    '(gymtrain_run_status_reason{condition="Healthy"}))',
                    "{{reason}}",
                )
            ],
            "Reasons of the condition Healthy: NoAlarm, or the trainer's alarm.",
            kind="stacked",
        ),
        Shown(
            "What runs do",
            [
                Query(
                    "count by (reason) (max by (namespace, run, reason) "
                    '(gymtrain_run_status_reason{condition="Progressing"}))',
                    "{{reason}}",
                )
            ],
            "Reasons of the condition Progressing.",
            kind="stacked",
        ),
        Shown(
            "Failed runs",
            [
                Query(
                    'max by (namespace, run, reason) (gymtrain_run_status_reason{condition="Failed"}) and on '
                    "(namespace, run) max by (namespace, run) "
                    '(gymtrain_run_status_condition{condition="Failed",status="true"}) == 1'
                )
            ],
            "Until they are deleted.",
            kind="table",
            width=24,
        ),
    ]
    work = [
        Shown("Leaders", [Query("sum(gymtrain_operator_leader)")], "Should be 1.", kind="number", width=6),
        Shown(
            "Since all runs were listed",
            [Query(f"time() - gymtrain_operator_last_resync_timestamp_seconds {_LEADER}")],
            "Once a minute.",
            unit="s",
            kind="number",
            width=6,
        ),
        Shown("Runs in the queue", [Query("sum(gymtrain_operator_queue_length)")], kind="number", width=6),
        Shown(
            "Runs without metrics of their own",
            [Query("sum(gymtrain_operator_runs_left_out)")],
            "There are more runs than the operator tells of.",
            kind="number",
            width=6,
        ),
        Shown(
            "Reconciles",
            [
                Query("sum by (kind) (rate(gymtrain_operator_reconcile_seconds_count[$__rate_interval]))", "{{kind}}"),
                Query("sum(rate(gymtrain_operator_status_writes_total[$__rate_interval]))", "status writes"),
            ],
            "full: everything about a run was read. tick: only its trainer was asked.",
            unit="ops",
        ),
        Shown(
            "Time of a reconcile",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le, kind) "
                    "(rate(gymtrain_operator_reconcile_seconds_bucket[$__rate_interval])))",
                    f"{{{{kind}}}} p{share[2:]}",
                )
                for share in ("0.50", "0.95")
            ],
            unit="s",
        ),
        Shown(
            "Reconciles that ended in an error",
            [
                Query(
                    "sum by (reason) (increase(gymtrain_operator_reconcile_errors_total[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            "ConflictError is ordinary: something changed meanwhile.",
        ),
    ]
    api = [
        Shown(
            "Requests to the API server",
            [
                Query(
                    "sum by (method, code) (rate(gymtrain_operator_api_requests_total[$__rate_interval]))",
                    "{{method}} {{code}}",
                )
            ],
            "429: it throttles the operator.",
            unit="ops",
        ),
        Shown(
            "Time of a request (p95)",
            [
                Query(
                    "histogram_quantile(0.95, sum by (le, method) "
                    "(rate(gymtrain_operator_api_request_seconds_bucket[$__rate_interval])))",
                    "{{method}}",
                )
            ],
            unit="s",
            width=8,
        ),
        Shown(
            "Cores",
            [Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {_LEADER}", "{{pod}}")],
            width=4,
        ),
        Shown(
            "Memory",
            [Query(f"process_resident_memory_bytes {_LEADER}", "{{pod}}")],
            unit="bytes",
            width=4,
        ),
    ]
    return build(
        "gymtrain-operator",
        "gymtrain: operator",
        "How gymtrain's operator is, and what its runs need.",
        [],
        [("Runs", runs), ("Work", work), ("API server and process", api)],
    )
