"""What rank 0 does at each step: report, judge the step's numbers, keep the worker's place in checkpoints."""

import logging
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gymtrain_trainer.checkpoints.saving import Saves
from gymtrain_trainer.errors import DropReason
from gymtrain_trainer.framework import ShownRollout, StepMeasures, Steps, TrainedSample
from gymtrain_trainer.monitoring.record import StepRecord, step_line, step_record
from gymtrain_trainer.monitoring.series import equal_rewards_share, series_of
from gymtrain_trainer.monitoring.step_alarms import Numbers
from gymtrain_trainer.rank_zero import RankZero
from gymtrain_trainer.rollouts.buffer import UsedGroup

log = logging.getLogger(__name__)

_TOLD = ("rollout_wait_s", "weight_sync_s", "kl", "ratio")  # in the line of a step
_SHOWN = 4  # rollouts of a report
_SHOWN_LENGTH = 4000  # characters of a text


class StepReport:
    """Rank 0's `StepCallbacks`: the progress of each step, and the worker's place beside each checkpoint."""

    def __init__(self, rank_zero: RankZero, saves: Saves) -> None:
        """`saves`: of the run's checkpoints."""
        self._saves = saves
        self._rank_zero = rank_zero
        self._board = rank_zero.board
        self._used: list[UsedGroup] = []  # by the steps since the last report
        self._step_ended = time.monotonic()
        self._first_step = 0
        self._first = True  # report of this process
        self._series: Mapping[str, float] = {}
        self._left_out = 0  # groups by dynamic sampling, until the last report
        self._shown_until = 0.0  # time of the last rollout that was shown
        self._telling = threading.Lock()
        self._failing_reporters: dict[str, str] = {}

    def on_begin(self, steps: Steps) -> None:
        """Before the first weight sync, which needs the servers.

        Raises:
            ServersError: one wasn't up in time.
            InterruptedBySignal: SIGTERM, while they were awaited.
        """
        self._rank_zero.wait_for_servers()
        self._first_step = steps.done
        self._rank_zero.recorder.begin(steps.done)
        self._step_ended = time.monotonic()
        self._board.update(
            phase="waiting_for_rollouts",
            message="",
            training_started_at=time.time(),
            step=steps.done,
            max_steps=steps.total,
        )
        if self._rank_zero.evaluations is not None:
            self._rank_zero.evaluations.begin(steps)
        self._rank_zero.watchdog.begin()

    def on_step_begin(self) -> None:
        """The groups of a step are there."""
        if self._board.snapshot().phase != "training":
            self._board.update(phase="training")

    def on_step_end(self, steps: Steps, trained: Sequence[TrainedSample] = ()) -> None:
        """After the optimizer's step."""
        # At each step, not at each report: a checkpoint may come between two of them, and holds the place in the data.
        used = self._rank_zero.worker.use()
        self._used += used
        self._rank_zero.recorder.step(steps.done, used, trained)
        self._rank_zero.watchdog.stepped()
        fields: dict[str, Any] = {"step": steps.done}
        if steps.done == self._first_step + 1:
            fields["first_step_at"] = time.time()
        self._board.update(**fields)
        if self._rank_zero.evaluations is not None:
            self._rank_zero.evaluations.step_ended(steps)

    def on_synced(self, steps: Steps) -> None:
        """After the weight sync."""
        if self._rank_zero.evaluations is not None:
            self._rank_zero.evaluations.synced(steps)

    def on_measures(self, steps: Steps, measures: StepMeasures) -> None:
        """After the weight sync."""
        if not self._used:
            return
        used, self._used = self._used, []
        now = time.monotonic()
        numbers = measures.known()
        record = step_record(steps.done, used, now - self._step_ended, numbers=numbers)
        first, self._first, self._step_ended = self._first, False, now
        self._rank_zero.recorder.report(record)
        dropped = self._rank_zero.worker.dropped
        before, self._left_out = self._left_out, dropped.get(DropReason.EQUAL_REWARDS, 0)
        equal = equal_rewards_share(used, self._left_out - before)
        lost = self._board.lost()
        self._series = series_of(record, used, numbers=numbers, dropped=dropped, lost=lost, equal_rewards_share=equal)
        constrained = [sample.constrained for one in used for sample in one.group.samples]
        told = {name: numbers[name] for name in _TOLD if name in numbers}
        print(step_line(record, used, self._rank_zero.numbering.label, told), flush=True)
        numbers |= {
            "reward_std": record.reward_std,
            "staleness": record.staleness,
            "step_seconds": record.seconds,
            "tokens": float(record.tokens),
            "staleness_max": float(max(age for one in used for age in one.staleness)),
            "constrained_samples": float(sum(constrained)),
            "equal_rewards_share": equal,
        } | {f"dropped_{reason}": float(count) for reason, count in dropped.items()}
        self._board.set_numbers(numbers)
        self._judge(numbers, record, first, statistics.fmean(constrained))
        if self._rank_zero.checker is not None:
            self._rank_zero.checker.report(steps.done)
        self._board.update(reward=record.reward, tokens_per_second=round(record.tokens_per_second, 2))
        log.info(
            "step %d/%d  reward %.3f ± %.3f  %d groups  staleness %.1f  %.0f tok/s  %.1f s (rollouts %.1f, sync %.1f)",
            steps.done,
            steps.total,
            record.reward,
            record.reward_std,
            record.groups,
            record.staleness,
            record.tokens_per_second,
            record.seconds,
            numbers.get("rollout_wait_s", 0.0),
            numbers.get("weight_sync_s", 0.0),
        )

    def series(self) -> Mapping[str, float]:
        """Of the last report; a report without a step has none."""
        series, self._series = self._series, {}
        return series

    def shown(self) -> Sequence[ShownRollout]:
        """The newest rollouts that came since the last report."""
        new = [sample for sample in self._board.samples(_SHOWN) if sample["time"] > self._shown_until]
        if new:
            self._shown_until = max(sample["time"] for sample in new)
        return [
            ShownRollout(
                agent=sample["agent"],
                reward=sample["reward"],
                prompt=_cut(sample["prompt"]),
                completion=_cut(sample["completion"]),
                tokens=sample["tokens"],
                turns=sample["turns"],
                model_version=sample["model_version"],
            )
            for sample in new
        ]

    def on_reporter(self, name: str, failing: str | None) -> None:
        """Raises the alarm, and ends it once all trackers take reports."""
        with self._telling:
            self._failing_reporters.pop(name, None)
            if failing is not None:
                self._failing_reporters[name] = failing
            if not self._failing_reporters:
                self._board.clear_alarm("ReporterFailed")
                return
            told = "; ".join(f"{one} {why}" for one, why in sorted(self._failing_reporters.items()))
            self._board.set_alarm("ReporterFailed", f"{told}. Training continues, and rewards.csv has its curve")

    def saving(self) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint: the step after it isn't overdue."""
        return self._rank_zero.watchdog.saving()

    def on_save(self, steps: Steps) -> None:
        """A checkpoint was written, or tried."""
        self._rank_zero.recorder.settle()
        self._saves.complete(steps.done, self._rank_zero.worker)
        if self._rank_zero.evaluations is not None:
            self._rank_zero.evaluations.saved()

    def on_save_error(self, steps: Steps, error: Exception) -> None:
        """A checkpoint could not be written."""
        self._saves.failed(steps.done, error)

    def _judge(self, numbers: dict[str, float], record: StepRecord, first: bool, constrained: float) -> None:
        kl, ratio = numbers.get("kl"), numbers.get("ratio")
        dtype = self._rank_zero.weight_sync.sent_dtype
        told = Numbers(kl, ratio, record.staleness, first, record.step, constrained, dtype)
        verdict = self._rank_zero.alarms.look(told)
        for reason, message in verdict.items():
            if message is None:
                self._board.clear_alarm(reason)
            else:
                log.warning("alarm %s: %s", reason, message)
                self._board.set_alarm(reason, message)
        if first and ratio is not None and kl is not None:
            log.info("the first step's probability ratio is %.4f and its KL %.2g (1 and 0 are exact)", ratio, kl)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH // 2]} [...] {text[-_SHOWN_LENGTH // 2 :]}"
