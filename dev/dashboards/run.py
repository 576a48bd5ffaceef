"""The dashboard of one run."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dev.dashboards.parts import Query, Shown, build, variable

_OF = 'namespace="$namespace",run="$run"'


def _step(name: str) -> str:
    return f'max(gymtrain_trainer_step_value{{{_OF},name="{name}"}})'


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF}}}[$__rate_interval]))"


def _quantile(share: str, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{_OF}}}[$__rate_interval])))"


def _state() -> list[Shown]:
    return [
        Shown(
            "Conditions",
            [Query(f"max by (condition, reason) (gymtrain_run_status_reason{{{_OF}}})")],
            "From the operator, so this row has data even if the run's pods can't be scraped.",
            kind="table",
            width=12,
        ),
        Shown("Step", [Query(f"max(gymtrain_run_step{{{_OF}}})")], kind="number", width=4),
        Shown("Steps to do", [Query(f"max(gymtrain_run_max_steps{{{_OF}}})")], kind="number", width=4),
        Shown("Attempt", [Query(f"max(gymtrain_run_attempt{{{_OF}}})")], kind="number", width=4),
    ]


def _learning() -> list[Shown]:
    return [
        Shown(
            "Reward",
            [
                Query(f"max(gymtrain_trainer_reward{{{_OF}}})", "mean of a step"),
                Query(_step("reward_std"), "deviation within groups"),
            ],
            "No deviation within groups, no gradient.",
        ),
        Shown(
            "Validation reward",
            [
                Query(
                    f'max by (environment) (gymtrain_trainer_validation_value{{{_OF},name="{name}"}})',
                    f"{{{{environment}}}}{suffix}",
                )
                for name, suffix in (("reward", ""), ("reward_low", " low"), ("reward_high", " high"))
            ],
            "With its 95 % interval.",
        ),
        Shown(
            "Loss, KL, entropy",
            [Query(_step(name), name) for name in ("loss", "kl", "entropy", "grad_norm")],
        ),
    ]


def _samples() -> list[Shown]:
    return [
        Shown(
            "Staleness",
            [Query(_step("staleness"), "mean"), Query(_step("staleness_max"), "most")],
            "Weight versions between sampling and training. spec.rollout.maxStaleness bounds it.",
        ),
        Shown(
            "Trainer against vLLM",
            [
                Query(f"max(gymtrain_trainer_parity{{{_OF}}})", "difference of log-probabilities"),
                Query(_step("ratio"), "probability ratio"),
            ],
            "The ratio should be 1.",
        ),
        Shown(
            "Alarms",
            [Query(f"max by (reason) (gymtrain_trainer_alarm{{{_OF}}})", "{{reason}}")],
            "1 while active.",
            kind="stacked",
        ),
        Shown(
            "Rollouts",
            [
                Query(f"sum(rate(gymtrain_trainer_rollouts_total{{{_OF}}}[$__rate_interval]))", "completed"),
                Query(f"sum(rate(gymtrain_trainer_failed_rollouts_total{{{_OF}}}[$__rate_interval]))", "failed tries"),
            ],
            unit="ops",
        ),
        Shown(
            "Lost rollouts",
            [
                Query(
                    f"sum by (environment, kind, outcome) "
                    f"(increase(gymtrain_trainer_lost_rollouts_total{{{_OF}}}[$__rate_interval]))",
                    "{{environment}} {{kind}} {{outcome}}",
                )
            ],
        ),
        Shown(
            "Dropped groups",
            [
                Query(
                    f"sum by (reason) "
                    f"(increase(gymtrain_trainer_dropped_groups_by_reason_total{{{_OF}}}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
        ),
    ]


def _time() -> list[Shown]:
    waits, sync = _step("rollout_wait_s"), _step("weight_sync_s")
    return [
        Shown(
            "A step's time",
            [
                Query(waits, "waiting for rollouts"),
                Query(sync, "weight sync"),
                Query(f"clamp_min({_step('step_seconds')} - {waits} - {sync}, 0)", "training and the rest"),
            ],
            unit="s",
            kind="stacked",
        ),
        Shown(
            "Tokens per second",
            [
                Query(f"max(gymtrain_trainer_tokens_per_second{{{_OF}}})", "trained"),
                Query(
                    f"sum(rate(gymtrain_gateway_generated_tokens_total{{{_OF}}}[$__rate_interval]))",
                    "generated",
                ),
            ],
        ),
        Shown(
            "Groups of rollouts",
            [
                Query(f"max(gymtrain_trainer_groups_in_flight{{{_OF}}})", "in flight"),
                Query(f"max(gymtrain_trainer_oldest_group_seconds{{{_OF}}})", "seconds of the oldest"),
                Query(f"max(gymtrain_trainer_rollouts_failing_seconds{{{_OF}}})", "seconds without a usable one"),
            ],
        ),
    ]


def _gateway() -> list[Shown]:
    return [
        Shown(
            "Requests",
            [
                Query(f"sum(gymtrain_gateway_open_requests{{{_OF}}})", "open"),
                Query(f"sum(gymtrain_gateway_queued_requests{{{_OF}}})", "waiting for a vLLM pod"),
                Query(f"sum(gymtrain_gateway_in_flight_requests{{{_OF}}})", "in vLLM"),
            ],
        ),
        Shown(
            "Time of a request",
            [
                Query(
                    _quantile(share, "gymtrain_gateway_request_seconds", "route"),
                    f"{{{{route}}}} p{share[2:]}",
                )
                for share in ("0.50", "0.95")
            ],
            unit="s",
        ),
        Shown(
            "vLLM pods that get requests",
            [Query(f"max(gymtrain_gateway_admissible_pods{{{_OF}}})")],
            "None for a moment in a weight sync.",
            width=8,
        ),
        Shown(
            "Turns by history",
            [Query(_rate("gymtrain_gateway_turns_total", "history"), "{{history}}")],
            "forked: the chat template wrote earlier turns differently.",
            unit="ops",
        ),
        Shown(
            "Refused requests",
            [Query(_rate("gymtrain_gateway_refused_total", "status"), "{{status}}")],
            unit="ops",
        ),
        Shown(
            "Tries that failed because of a pod",
            [Query(_rate("gymtrain_gateway_retries_total", "reason"), "{{reason}}")],
            unit="ops",
        ),
    ]


def _sandboxes() -> list[Shown]:
    return [
        Shown(
            "Sandboxes",
            [
                Query(f"sum by (state) (gymtrain_broker_sandboxes{{{_OF}}})", "{{state}}"),
            ],
            kind="stacked",
        ),
        Shown(
            "Pods of sandboxes",
            [Query(f"sum by (state) (gymtrain_broker_pods{{{_OF}}})", "{{state}}")],
            kind="stacked",
        ),
        Shown(
            "Time to a running sandbox (p95)",
            [
                Query(_quantile("0.95", "gymtrain_broker_claim_seconds", "found"), "{{found}}"),
                Query(
                    f"histogram_quantile(0.95, sum by (le) "
                    f"(rate(gymtrain_broker_queue_seconds_bucket{{{_OF}}}[$__rate_interval])))",
                    "wait for a turn",
                ),
            ],
            "By what the request found when its turn came: ready (a hit), starting, none.",
            unit="s",
        ),
        Shown(
            "Ended",
            [Query(_rate("gymtrain_broker_ended_total", "reason"), "{{reason}}")],
            unit="ops",
        ),
        Shown(
            "Made and wasted",
            [
                Query(_rate("gymtrain_broker_made_total", "made_for"), "made for {{made_for}}"),
                Query(_rate("gymtrain_broker_wasted_total", "made_for"), "wasted: {{made_for}}"),
            ],
            unit="ops",
        ),
        Shown(
            "Images that could not be pulled",
            [
                Query(
                    f"sum by (reason) (increase(gymtrain_broker_pull_failures_total{{{_OF}}}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
        ),
    ]


def dashboard() -> Dashboard:
    """Whether a run learns, on which samples, and where its time goes."""
    return build(
        "gymtrain-run",
        "gymtrain: run",
        "Whether a run learns, on which samples, and where its time goes.",
        [
            variable("namespace", "Namespace", "label_values(gymtrain_run_info, namespace)"),
            variable("run", "Run", 'label_values(gymtrain_run_info{namespace="$namespace"}, run)'),
        ],
        [
            ("State", _state()),
            ("Learning", _learning()),
            ("Samples", _samples()),
            ("Where time goes", _time()),
            ("Gateway", _gateway()),
            ("Sandboxes", _sandboxes()),
        ],
    )
