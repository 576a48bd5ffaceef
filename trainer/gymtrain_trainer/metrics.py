"""Prometheus metrics of the trainer, read from the progress board at each scrape.

| metric | type | meaning |
|---|---|---|
| gymtrain_trainer_step | gauge | optimizer steps done |
| gymtrain_trainer_max_steps | gauge | optimizer steps to do |
| gymtrain_trainer_reward | gauge | mean reward of the last step's samples |
| gymtrain_trainer_tokens_per_second | gauge | completion tokens trained per second, last step |
| gymtrain_trainer_rollouts_total | counter | rollouts completed in this attempt |
| gymtrain_trainer_failed_rollouts_total | counter | rollout tries that failed in this attempt |
| gymtrain_trainer_dropped_groups_total | counter | groups dropped in this attempt |
| gymtrain_trainer_rollouts_failing_seconds | gauge | time without a usable group while groups fail |
| gymtrain_trainer_step_value | gauge | other numbers of the last step, by label `name` (kl, ratio, staleness) |
| gymtrain_trainer_info | gauge | 1; labels phase, transport, weight_version |
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gymtrain_trainer.progress import ProgressBoard


class BoardCollector:
    """Turns the board into metrics."""

    def __init__(self, board: ProgressBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls at a scrape."""
        now = self._board.snapshot()
        gauges = {
            "step": ("Optimizer steps done.", now.step),
            "max_steps": ("Optimizer steps to do.", now.max_steps),
            "reward": ("Mean reward of the last step's samples.", now.reward),
            "tokens_per_second": ("Completion tokens trained per second in the last step.", now.tokens_per_second),
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
            "failed_rollouts": ("Rollout tries that failed in this attempt.", now.failed_rollouts),
            "dropped_groups": ("Groups dropped in this attempt.", now.dropped_groups),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(f"gymtrain_trainer_{name}", text, value=float(count))
        values = GaugeMetricFamily("gymtrain_trainer_step_value", "Numbers of the last step.", labels=["name"])
        for name, number in sorted(self._board.numbers().items()):
            values.add_metric([name], number)
        yield values
        info = GaugeMetricFamily(
            "gymtrain_trainer_info", "State in labels.", labels=["phase", "transport", "weight_version"]
        )
        info.add_metric([now.phase, now.transport or "", now.weight_version or ""], 1.0)
        yield info


def registry(board: ProgressBoard) -> CollectorRegistry:
    """A registry with this board's metrics only."""
    result = CollectorRegistry()
    result.register(BoardCollector(board))
    return result
