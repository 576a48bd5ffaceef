"""Prometheus metrics of the trainer, read from the progress board at each scrape.

| metric | type | meaning |
|---|---|---|
| gymtrain_trainer_step | gauge | optimizer steps done |
| gymtrain_trainer_max_steps | gauge | optimizer steps to do |
| gymtrain_trainer_reward | gauge | mean reward of the last step's samples |
| gymtrain_trainer_tokens_per_second | gauge | completion tokens trained per second, last step |
| gymtrain_trainer_rollouts_total | counter | rollouts completed in this attempt |
| gymtrain_trainer_failed_rollouts_total | counter | rollout tries that failed in this attempt |
| gymtrain_trainer_lost_rollouts_total | counter | rollouts that failed for good, by `environment`, `kind`, `outcome` |
| gymtrain_trainer_dropped_groups_total | counter | groups dropped in this attempt |
| gymtrain_trainer_dropped_groups_by_reason_total | counter | the same by label `reason` (errors.DropReason) |
| gymtrain_trainer_forks_total | counter | turns before which the chat template rewrote the history |
| gymtrain_trainer_masked_rollouts_total | counter | truncated rollouts that were left out of the loss |
| gymtrain_trainer_constrained_turns_total | counter | turns that a grammar held (tool_choice, JSON schemas) |
| gymtrain_trainer_replaced_sampling_total | counter | rows and turns that asked for another one, by label `setting` |
| gymtrain_trainer_recorded_steps_total | counter | steps to record, by label `outcome` (docs/records.md) |
| gymtrain_trainer_rollouts_failing_seconds | gauge | time without a usable group while groups fail |
| gymtrain_trainer_groups_in_flight | gauge | groups whose rollouts run now |
| gymtrain_trainer_oldest_group_seconds | gauge | age of the oldest of them |
| gymtrain_trainer_parity | gauge | mean difference of log-probabilities, trainer and vLLM, when last checked |
| gymtrain_trainer_failed_groups_total | counter | groups dropped as too few rollouts were left, by label `agent` |
| gymtrain_trainer_rows_given_up_total | counter | rows drawn as often as they may be, by label `reason` |
| gymtrain_trainer_alarm | gauge | 1 while the alarm of label `reason` stands (gymtrain_api.wiring.Alarm) |
| gymtrain_trainer_alarms_total | counter | alarms raised in this attempt, by label `reason` |
| gymtrain_trainer_checked_samples_total | counter | by label `verdict`: right, wrong (GYMTRAIN_CHECK_SAMPLES) |
| gymtrain_trainer_step_value | gauge | other numbers of the last step, by label `name` (kl, ratio, staleness) |
| gymtrain_trainer_validation_step | gauge | step whose weights the last evaluation is of |
| gymtrain_trainer_validation_value | gauge | its numbers, by labels `environment` and `name` (docs/evaluation.md) |
| gymtrain_trainer_info | gauge | 1; labels phase, transport, weight_version |

Of a lost rollout, `environment` is its agent, `kind` one of errors.FailureKind, and `outcome` says what became of it:
`dropped` from its group, or `zeroed`, counted with reward 0.
"""

import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gymtrain_api.wiring import AlarmReason
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
            "oldest_group_seconds": ("Age of the oldest running group.", in_flight.oldest_seconds),
            "validation_step": ("Step of the last evaluation.", now.validation_step),
            "parity": ("Mean difference of log-probabilities when last checked.", now.parity),
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
            "failed_rollouts": ("Failed tries of rollouts in this attempt.", now.failed_rollouts),
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
            "Rollouts that failed for good.",
            labels=["environment", "kind", "outcome"],
        )
        for loss, number_lost in self._board.lost().items():
            outcome = "zeroed" if loss.zeroed else "dropped"
            lost.add_metric([loss.environment, loss.kind, outcome], float(number_lost))
        yield lost
        yield self._by_label("dropped_groups_by_reason", "Groups dropped, by reason.", "reason", "dropped_groups")
        yield self._by_label(
            "replaced_sampling", "Requested sampling settings that the run's replaced.", "setting", "replaced_sampling"
        )
        yield self._by_label(
            "failed_groups", "Groups of which too few rollouts were left, by agent.", "agent", "failed_groups"
        )
        yield self._by_label("rows_given_up", "Rows given up, by reason.", "reason", "rows_given_up")
        yield self._by_label("alarms", "Alarms raised.", "reason", "alarms")
        yield self._by_label("recorded_steps", "Steps with samples to record, by outcome.", "outcome", "recorded_steps")
        yield self._by_label("checked_samples", "Samples checked.", "verdict", "checked_samples")
        alarms = GaugeMetricFamily("gymtrain_trainer_alarm", "1 while the alarm is active.", labels=["reason"])
        standing = {alarm.reason for alarm in now.alarms}
        for reason in _ALARMS:
            alarms.add_metric([reason], float(reason in standing))
        yield alarms
        values = GaugeMetricFamily("gymtrain_trainer_step_value", "Numbers of the last step.", labels=["name"])
        for name, number in sorted(self._board.numbers().items()):
            values.add_metric([name], number)
        yield values
        evaluated = GaugeMetricFamily(
            "gymtrain_trainer_validation_value", "Numbers of the last evaluation.", labels=["environment", "name"]
        )
        for environment, numbers in sorted(self._board.evaluation().items()):
            for name, number in sorted(numbers.items()):
                evaluated.add_metric([environment, name], number)
        yield evaluated
        info = GaugeMetricFamily(
            "gymtrain_trainer_info", "State in labels.", labels=["phase", "transport", "weight_version"]
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
