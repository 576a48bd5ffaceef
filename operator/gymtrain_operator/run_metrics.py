"""Metrics about runs, in the manner of kube-state-metrics: what their statuses say, made anew at each scrape.

They are bounded. A run that goes on has three series for each condition and one for its reason, with the rest some 50;
of one that has ended only its end is told, in a dozen. Of more than `MAX_RUNS` runs, or `MAX_ENDED` that have ended,
the newest are told; a gauge says how many are left out. A run that is deleted is gone at the next scrape.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gymtrain_api.conditions import ConditionType
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds
from gymtrain_operator.reconcile.observation import Run

MAX_RUNS = 5000
MAX_ENDED = 500
"""Of these, that have ended: they may be many more than those that go on, and are no news for long."""

_ENDS = (ConditionType.COMPLETE, ConditionType.FAILED)
_STATUSES = ("True", "False", "Unknown")

type _Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Told:
    """What is told of one run.

    Attributes:
        state: one word, as status.state.
        conditions: type, status and reason.
    """

    state: str
    ended: bool
    conditions: tuple[tuple[str, str, str], ...]
    uid: str = ""
    model: str = ""
    transport: str = ""
    attempt: int | None = None
    step: int | None = None
    max_steps: int | None = None
    started: float | None = None
    completed: float | None = None


class RunMetrics(Collector):
    """The runs that the operator knows. It is told of them in one thread, and scraped in another."""

    def __init__(self, most: int = MAX_RUNS, most_ended: int = MAX_ENDED) -> None:
        self._most = most
        self._most_ended = most_ended
        self._runs: dict[_Key, _Told] = {}  # the one told of first comes first
        self._lock = threading.Lock()

    def show(self, run: Run, status: GymTrainingRunStatus) -> None:
        """Notes the status that a run has from now on."""
        ended = any(status.is_true(kind) for kind in _ENDS)
        conditions = (c for c in status.conditions if not ended or c.type in _ENDS)
        progress = status.progress
        told = _Told(
            state=status.state or "",
            ended=ended,
            conditions=tuple((one.type, one.status, one.reason) for one in conditions),
            uid=run.uid,
            model=run.spec.model.source if run.spec else "",
            transport=status.weight_sync.transport if status.weight_sync else "",
            attempt=status.attempt,
            step=progress.step if progress else None,
            max_steps=progress.max_steps if progress else None,
            started=to_seconds(status.start_time),
            completed=to_seconds(status.completion_time),
        )
        with self._lock:
            self._runs[run.namespace, run.name] = told

    def show_ended(self, key: _Key, state: str) -> None:
        """Notes a run that ended before this process began, of which only its state was read so far."""
        conditions = tuple((kind, str(state == kind), "") for kind in _ENDS)
        with self._lock:
            self._runs[key] = _Told(state, True, conditions)

    def forget(self, key: _Key) -> None:
        """Notes that a run is gone."""
        with self._lock:
            self._runs.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client calls at a scrape."""
        with self._lock:
            runs = list(self._runs.items())
        yield _by_state(told.state for _, told in runs)
        runs.reverse()
        told_of = [one for one in runs if not one[1].ended][: self._most]
        ended = sorted((one for one in runs if one[1].ended), key=lambda one: -(one[1].completed or 0.0))
        told_of += ended[: min(self._most_ended, self._most - len(told_of))]
        yield GaugeMetricFamily(
            "gymtrain_operator_runs_left_out",
            f"Runs without the metrics gymtrain_run_..., as there are more than {MAX_RUNS}, or {MAX_ENDED} have ended.",
            value=len(runs) - len(told_of),
        )
        yield _info(told_of)
        yield from _conditions(told_of)
        yield from _numbers(told_of)


def _by_state(states: Iterable[str]) -> Metric:
    family = GaugeMetricFamily("gymtrain_operator_runs", "Runs by state, that of status.state.", labels=["state"])
    for state, count in sorted(Counter(states).items()):
        family.add_metric([state], count)
    return family


def _info(runs: list[tuple[_Key, _Told]]) -> Metric:
    family = GaugeMetricFamily(
        "gymtrain_run_info",
        "Always 1. model is spec.model.source, transport that of status.weightSync.",
        labels=["namespace", "run", "uid", "model", "transport"],
    )
    for key, told in runs:
        family.add_metric([*key, told.uid, told.model, told.transport], 1.0)
    return family


def _conditions(runs: list[tuple[_Key, _Told]]) -> Iterator[Metric]:
    status = GaugeMetricFamily(
        "gymtrain_run_status_condition",
        "1 for the status that a condition of the run has, 0 for the two others: true, false, unknown. A run that has "
        "ended has Complete and Failed alone.",
        labels=["namespace", "run", "condition", "status"],
    )
    reason = GaugeMetricFamily(
        "gymtrain_run_status_reason",
        "1 for the reason that a condition of the run has.",
        labels=["namespace", "run", "condition", "reason"],
    )
    for key, told in runs:
        for kind, standing, why in told.conditions:
            for one in _STATUSES:
                status.add_metric([*key, kind, one.lower()], float(one == standing))
            if why:
                reason.add_metric([*key, kind, why], 1.0)
    yield status
    yield reason


_NUMBERS = {
    "attempt": ("attempt", "Current attempt, from 1."),
    "step": ("step", "Optimizer steps done, as status.progress has it."),
    "max_steps": ("max_steps", "Optimizer steps to do."),
    "started": ("start_time_seconds", "When the operator first saw the run, in seconds since the epoch."),
    "completed": ("completion_time_seconds", "When the run ended, in seconds since the epoch."),
}


def _numbers(runs: list[tuple[_Key, _Told]]) -> Iterator[Metric]:
    for field, (name, text) in _NUMBERS.items():
        family = GaugeMetricFamily(f"gymtrain_run_{name}", text, labels=["namespace", "run"])
        for key, told in runs:
            value = getattr(told, field)
            if value is not None:
                family.add_metric(key, value)
        yield family


RUNS = RunMetrics()
REGISTRY.register(RUNS)
