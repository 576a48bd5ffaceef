"""Metrics of runs: what a scrape shows of them, and when they are gone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from gymtrain_api.runs import parse_spec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator import run_metrics
from gymtrain_operator.reconcile.observation import Run
from gymtrain_operator.run_metrics import RunMetrics
from tests.support.world import World, spec

CONDITION = "gymtrain_run_status_condition"
LONG_AGO = "2026-11-24T12:00:00Z"


def _run(name: str = "run") -> Run:
    return Run(name, "team", f"uid-of-{name}", 1, parse_spec(spec()), GymTrainingRunStatus())


def _status(*conditions: tuple[str, str, str], **fields: Any) -> GymTrainingRunStatus:
    listed = [
        {"type": kind, "status": status, "reason": reason, "lastTransitionTime": LONG_AGO}
        for kind, status, reason in conditions
    ]
    return GymTrainingRunStatus.model_validate({"state": "Training", "conditions": listed, **fields})


TRAINING = _status(("Healthy", "False", "KLHigh"), ("Failed", "False", "Running"))
FAILED = _status(
    ("Healthy", "True", "NoAlarm"), ("Complete", "False", "Running"), ("Failed", "True", "TrainerRefused"),
    state="Failed", completionTime=LONG_AGO,
)  # fmt: skip


class Scrape:
    """Samples by name and labels, as one scrape finds them."""

    def __init__(self, metrics: RunMetrics) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def of(self, name: str) -> Iterator[dict[str, str]]:
        for family in self.registry.collect():
            yield from (sample.labels for sample in family.samples if sample.name == name)

    def of_run(self, run: str) -> int:
        return sum(sample.labels.get("run") == run for family in self.registry.collect() for sample in family.samples)


@pytest.fixture
def metrics() -> RunMetrics:
    return RunMetrics()


def test_a_condition_has_a_series_for_each_status_and_one_of_them_is_1(metrics: RunMetrics) -> None:
    metrics.show(_run(), TRAINING)
    scrape = Scrape(metrics)
    shown = {
        status: scrape.value(CONDITION, namespace="team", run="run", condition="Healthy", status=status)
        for status in ("true", "false", "unknown")
    }
    assert shown == {"true": 0.0, "false": 1.0, "unknown": 0.0}


def test_the_reason_of_a_condition_is_told_beside_it(metrics: RunMetrics) -> None:
    metrics.show(_run(), TRAINING)
    reasons = {one["condition"]: one["reason"] for one in Scrape(metrics).of("gymtrain_run_status_reason")}
    assert reasons == {"Healthy": "KLHigh", "Failed": "Running"}


def test_numbers_are_shown_once_the_status_has_them(metrics: RunMetrics) -> None:
    metrics.show(_run(), TRAINING)
    scrape = Scrape(metrics)
    assert scrape.value("gymtrain_run_step", namespace="team", run="run") is None
    progress = {"step": 3, "maxSteps": 10}
    metrics.show(_run(), _status(attempt=2, progress=progress, startTime=LONG_AGO, weightSync={"transport": "NCCL"}))
    names = ("attempt", "step", "max_steps", "start_time_seconds", "completion_time_seconds")
    numbers = [scrape.value(f"gymtrain_run_{name}", namespace="team", run="run") for name in names]
    assert numbers == [2, 3, 10, 1795521600.0, None]
    assert list(scrape.of("gymtrain_run_info")) == [
        {"namespace": "team", "run": "run", "uid": "uid-of-run", "model": "hf://org/model", "transport": "NCCL"}
    ]


def test_a_run_whose_spec_cannot_be_read_is_shown(metrics: RunMetrics) -> None:
    metrics.show(replace(_run(), spec=None), FAILED)
    assert next(Scrape(metrics).of("gymtrain_run_info"))["model"] == ""


def test_of_a_run_that_has_ended_only_its_end_is_told(metrics: RunMetrics) -> None:
    metrics.show(_run(), FAILED)
    assert {one["condition"] for one in Scrape(metrics).of(CONDITION)} == {"Complete", "Failed"}


def test_a_run_that_ended_before_the_operator_began_is_told_by_its_state(metrics: RunMetrics) -> None:
    metrics.show_ended(("team", "run"), "Failed")
    scrape = Scrape(metrics)
    for condition, status in (("Failed", "true"), ("Complete", "false")):
        assert scrape.value(CONDITION, namespace="team", run="run", condition=condition, status=status) == 1.0
    assert scrape.value("gymtrain_operator_runs", state="Failed") == 1.0


def test_a_run_that_is_gone_leaves_no_series(metrics: RunMetrics) -> None:
    metrics.show(_run(), TRAINING)
    metrics.show(_run("other"), TRAINING)
    metrics.forget(("team", "run"))
    scrape = Scrape(metrics)
    assert scrape.of_run("run") == 0
    assert scrape.value("gymtrain_operator_runs", state="Training") == 1.0


@pytest.mark.parametrize("bounds", [{"most": 3}, {"most_ended": 1}])
def test_of_too_many_runs_those_are_left_out_that_ended_first(bounds: dict[str, int]) -> None:
    metrics = RunMetrics(**bounds)
    for number in (0, 2, 1):
        ended = FAILED.model_copy(update={"completion_time": f"2026-11-2{number}T00:00:00Z"})
        metrics.show(_run(f"ended-{number}"), ended)
    for number in range(2):
        metrics.show(_run(f"running-{number}"), TRAINING)
    scrape = Scrape(metrics)
    assert {one["run"] for one in scrape.of("gymtrain_run_info")} == {"running-0", "running-1", "ended-2"}
    assert scrape.value("gymtrain_operator_runs_left_out") == 2.0
    assert scrape.value("gymtrain_operator_runs", state="Failed") == 3.0


def test_of_too_many_runs_that_go_on_the_newest_are_told() -> None:
    metrics = RunMetrics(most=2)
    for number in range(3):
        metrics.show(_run(f"running-{number}"), TRAINING)
    metrics.show(_run("running-0"), TRAINING)  # to be told of again makes no run newer
    assert {one["run"] for one in Scrape(metrics).of("gymtrain_run_info")} == {"running-1", "running-2"}


def test_a_run_has_some_50_series_while_it_trains_and_a_dozen_when_it_has_ended(metrics: RunMetrics) -> None:
    """The bound that docs/metrics.md promises."""
    world = World(sandboxes={}).to_training()
    metrics.show(_run(), world.status)
    assert 30 < Scrape(metrics).of_run("run") <= 55
    world.trainer_ends(0)
    world.settle(5.0)
    assert world.status.state == "Complete"
    metrics.show(_run(), world.status)
    assert Scrape(metrics).of_run("run") <= 14


def test_the_metrics_of_all_runs_are_registered() -> None:
    assert run_metrics.RUNS in set(REGISTRY._collector_to_names)
