"""Prometheus metrics of the trainer, read from the progress board at each scrape. docs/metrics.md lists them."""

import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gymtrain_api.wiring import AlarmReason
from gymtrain_trainer.errors import DropReason
from gymtrain_trainer.progress import ProgressBoard

_ALARMS: tuple[str, ...] = get_args(AlarmReason.__value__)


class BoardCollector:
    """Turns the board into metrics."""

    def __init__(self, board: ProgressBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls at a scrape."""
        now, in_flight = self._board.snapshot(), self._board.in_flight()
        gauges = {
            "step": ("Optimizer steps done.", now.step),
            "max_steps": ("Optimizer steps to do.", now.max_steps),
            "reward": ("Mean reward of the last step's samples.", now.reward),
            "tokens_per_second": ("Completion tokens trained per second in the last step.", now.tokens_per_second),
            "groups_in_flight": ("Groups with running rollouts.", in_flight.groups),
            "oldest_group_seconds": ("Age of the oldest group with running rollouts.", in_flight.oldest_seconds),
            "validation_step": ("Step whose weights the last evaluation is of.", now.validation_step),
            "parity": ("Mean difference of log-probabilities between trainer and vLLM, when last checked.", now.parity),
            "rollouts_failing_seconds": (
                "Time without a usable group while groups fail.",
                time.time() - now.rollouts_failing_since if now.rollouts_failing_since else 0.0,
            ),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"gymtrain_trainer_{name}", text, value=float(value))
        counters = {
            "rollouts": ("Rollouts completed in this attempt.", now.rollouts),
            "failed_rollouts": ("Tries of rollouts that failed in this attempt.", now.failed_rollouts),
            "dropped_groups": ("Groups dropped in this attempt.", now.dropped_groups),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(f"gymtrain_trainer_{name}", text, value=float(count))
        for name, text in {
            "forks": "Turns before which the chat template rewrote the history.",
            "masked_rollouts": "Truncated rollouts that were left out of the loss.",
            "constrained_turns": "Turns constrained by a grammar (tool_choice, JSON schemas).",
        }.items():
            total = sum(self._board.tallies(name).values())
            yield CounterMetricFamily(f"gymtrain_trainer_{name}", text, value=float(total))
        lost = CounterMetricFamily(
            "gymtrain_trainer_lost_rollouts",
            "Rollouts that failed for good, by agent (environment), kind (infrastructure, timeout, environment) and "
            "outcome: dropped from its group, or zeroed (counted with reward 0).",
            labels=["environment", "kind", "outcome"],
        )
        for loss, number_lost in self._board.lost().items():
            outcome = "zeroed" if loss.zeroed else "dropped"
            lost.add_metric([loss.environment, loss.kind, outcome], float(number_lost))
        yield lost
        yield self._by_label(
            "dropped_groups_by_reason",
            "Groups dropped in this attempt, by reason: " + ", ".join(DropReason) + ".",
            "reason",
            "dropped_groups",
        )
        yield self._by_label(
            "replaced_sampling",
            "Rows and turns that asked for another sampling setting than the run's and didn't get it, by setting.",
            "setting",
            "replaced_sampling",
        )
        yield self._by_label(
            "failed_groups", "Groups dropped because too few rollouts were left, by agent.", "agent", "failed_groups"
        )
        yield self._by_label(
            "late_groups",
            "Groups that ran so long that others started in their place, by agent. They are trained on when they end.",
            "agent",
            "late_groups",
        )
        yield self._by_label(
            "rows_given_up",
            "Rows drawn as often as they may be and given up, by the reason of the last drop.",
            "reason",
            "rows_given_up",
        )
        yield self._by_label("alarms", "Alarms raised in this attempt, by reason.", "reason", "alarms")
        yield self._by_label(
            "recorded_steps",
            "Steps with samples to record, by outcome: written, removed (written before), failed, dropped (left out).",
            "outcome",
            "recorded_steps",
        )
        yield self._by_label(
            "checked_samples",
            "Samples checked (GYMTRAIN_CHECK_SAMPLES), by verdict: right, wrong.",
            "verdict",
            "checked_samples",
        )
        alarms = GaugeMetricFamily(
            "gymtrain_trainer_alarm",
            "1 while the alarm is active, else 0, by reason: " + ", ".join(_ALARMS) + ".",
            labels=["reason"],
        )
        standing = {alarm.reason for alarm in now.alarms}
        for reason in _ALARMS:
            alarms.add_metric([reason], float(reason in standing))
        yield alarms
        values = GaugeMetricFamily(
            "gymtrain_trainer_step_value", "Other numbers of the last step, by name.", labels=["name"]
        )
        for name, number in sorted(self._board.numbers().items()):
            values.add_metric([name], number)
        yield values
        evaluated = GaugeMetricFamily(
            "gymtrain_trainer_validation_value",
            "Numbers of the last evaluation, by agent (environment; all: (all)) and name.",
            labels=["environment", "name"],
        )
        for environment, numbers in sorted(self._board.evaluation().items()):
            for name, number in sorted(numbers.items()):
                evaluated.add_metric([environment, name], number)
        yield evaluated
        info = GaugeMetricFamily(
            "gymtrain_trainer_info",
            "Always 1; the labels are the state of the trainer.",
            labels=["phase", "transport", "weight_version"],
        )
        info.add_metric([now.phase, now.transport or "", now.weight_version or ""], 1.0)
        yield info

    def _by_label(self, name: str, text: str, label: str, tally: str) -> Metric:
        family = CounterMetricFamily(f"gymtrain_trainer_{name}", text, labels=[label])
        for value, count in sorted(self._board.tallies(tally).items()):
            family.add_metric([value], float(count))
        return family


def registry(board: ProgressBoard) -> CollectorRegistry:
    """A registry with this board's metrics only."""
    result = CollectorRegistry()
    result.register(BoardCollector(board))
    return result
