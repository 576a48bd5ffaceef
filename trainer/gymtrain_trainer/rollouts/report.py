"""What the rollout worker tells the board, the metrics queue and the log about its groups."""

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from gymtrain_api.conditions import Reason
from gymtrain_api.wiring import AlarmReason
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.alarms import Environments, KnownCalls
from gymtrain_trainer.rollouts.answer import prompt_text
from gymtrain_trainer.rollouts.group import Group, Lost
from gymtrain_trainer.rollouts.source import Sampling, replaced_by_run
from gymtrain_trainer.rollouts.summary import RolloutSummary

log = logging.getLogger(__name__)

DROPPED = "dropped_groups"
FORKS = "forks"
MASKED = "masked_rollouts"
CONSTRAINED = "constrained_turns"
REPLACED = "replaced_sampling"
FAILED_GROUPS = "failed_groups"
GIVEN_UP = "rows_given_up"
LATE = "late_groups"
_SHOWN = 2  # rollouts of each group that /samples shows


class RolloutRecords(Protocol):
    """Who keeps what was said in rollouts. Called from the worker's thread."""

    def usable(self, task: Task, group: Group) -> None:
        """The task's group goes to the trainer."""
        ...

    def dropped(self, task: Task, error: GroupDroppedError) -> None:
        """It is dropped."""
        ...

    def lost(self, agent: str, lost: Lost) -> None:
        """A rollout of the agent failed for good."""
        ...


def _mean_hops(rollouts: Sequence[RolloutSummary]) -> dict[str, float]:
    """Where the rollouts' seconds went, means over those of which it is known."""
    told: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.hops.numbers().items():
            told[name].append(value)
    return {f"rollout/{name}": sum(values) / len(values) for name, values in told.items()}


class RolloutReport:
    """Written by the worker's thread; what was dropped while it waited, by the trainer's."""

    def __init__(
        self,
        board: ProgressBoard,
        sampling: Sampling,
        *,
        masks_truncated: bool,
        records: RolloutRecords | None = None,
    ) -> None:
        """`sampling`: the run's; `masks_truncated`: spec.rollout.maskTruncated; `records`: None where none are kept."""
        self._records = records
        self.metrics: queue.Queue[dict[str, Any]] = queue.Queue()  # the framework drains it into its own
        self._board = board
        self._sampling = sampling
        self._replaced: dict[str, None] = {}  # sampling settings that were told already
        self._masks_truncated = masks_truncated
        self._lock = threading.Lock()
        self._dropped: Counter[DropReason] = Counter()
        self._environments = Environments()
        self._known_calls = KnownCalls()
        self.unusable = 0  # groups in a row
        self.last_error = "no rollout has finished yet"
        self.last_usable = time.monotonic()

    def dropped(self) -> dict[DropReason, int]:
        """Groups dropped so far, by reason."""
        with self._lock:
            return dict(self._dropped)

    def rollout_failed(self, error: str) -> None:
        """One try of a rollout failed."""
        self.last_error = error
        self._board.count("failed_rollouts")

    def rollout_lost(self, agent: str, lost: Lost) -> None:
        """A rollout of the agent failed for good: its group goes on without it, or with a 0 in its place."""
        log.info("rollout of %s %s (%s): %s", agent, "zeroed" if lost.zeroed else "dropped", lost.kind, lost.error)
        self._board.lose(agent, lost.kind, zeroed=lost.zeroed)
        if self._records is not None:
            self._records.lost(agent, lost)

    def group_dropped(self, task: Task, error: GroupDroppedError) -> None:
        """The task's group is dropped, never rewarded with 0."""
        agent = task.agent
        if self._records is not None:
            self._records.dropped(task, error)
        self.last_error = str(error)
        self._count_drop(error.reason)
        if error.reason is not DropReason.EQUAL_REWARDS:  # nothing is wrong with such a group
            self.unusable += 1
            log.warning("group dropped (%s): %s", error.reason, error)
            fields: dict[str, Any] = {"message": f"rollout groups are dropped ({error.reason}): {error}"}
            if self.unusable == 1:
                fields["rollouts_failing_since"] = time.time()
            self._board.update(**fields)
        if error.reason is DropReason.FAILED:
            self._board.tally(FAILED_GROUPS, agent)
            self._environments.failed(agent, str(error))
        else:
            self._environments.worked(agent)
            self._known_calls.group(known=error.reason is not DropReason.NO_LEDGER_ENTRY)
        self._look()

    def group_late(self, agent: str) -> None:
        """A group runs for so long that others start in its place; told once."""
        self._board.tally(LATE, agent)

    def row_given_up(self, position: int, reason: DropReason, why: str) -> None:
        """A row was drawn as often as it may be; the next one takes its place."""
        self._board.tally(GIVEN_UP, str(reason))
        log.warning("the row at position %d is given up (%s): %s", position, reason, why)
        if reason is DropReason.NO_LEDGER_ENTRY:
            self._known_calls.given_up(why)
            self._look()

    def group_usable(self, task: Task, group: Group) -> None:
        """The samples of the task's group go to the trainer."""
        self.last_usable = time.monotonic()
        if self.unusable:
            self.unusable = 0
            self._board.update(rollouts_failing_since=None, message="")
        self._environments.worked(task.agent)
        self._known_calls.group(known=True)
        self._look()
        if self._records is not None:
            self._records.usable(task, group)
        rollouts, samples = group.rollouts, group.samples.samples
        count = len(rollouts)
        forks = sum(rollout.forks for rollout in rollouts)
        masked = sum(rollout.truncated for rollout in rollouts) if self._masks_truncated else 0
        self._board.count("rollouts", count)
        self._board.tally(FORKS, by=forks)
        self._board.tally(MASKED, by=masked)
        self._board.tally(CONSTRAINED, by=sum(rollout.constrained for rollout in rollouts))
        self._tell_replaced(task, group)
        self.metrics.put(
            {
                "rollout/group_s": group.seconds,
                **_mean_hops(rollouts),
                "rollout/completion_tokens_mean": sum(rollout.tokens for rollout in rollouts) / count,
                "rollout/turns_mean": sum(rollout.turns for rollout in rollouts) / count,
                "rollout/rows_per_rollout": len(samples) / count,
                "rollout/forks_total": float(forks),
                "rollout/masked_total": float(masked),
            }
        )
        for rollout in rollouts[:_SHOWN]:
            self._board.add_sample(
                {
                    "position": task.position,
                    "agent": task.agent,
                    "prompt": prompt_text(task.row),
                    "completion": rollout.text,
                    "reward": rollout.reward,
                    "scored": rollout.scored,
                    "tokens": rollout.tokens,
                    "turns": rollout.turns,
                    "forks": rollout.forks,
                    "model_version": rollout.version,
                    "time": time.time(),
                }
            )

    def _tell_replaced(self, task: Task, group: Group) -> None:
        """Rows, agents and model servers may ask for a sampling of their own: that they didn't get it is said once."""
        names = replaced_by_run(task.row, self._sampling) * len(group.rollouts)
        names += [name for rollout in group.rollouts for name in rollout.replaced]
        for name in names:
            self._board.tally(REPLACED, name)
        if self._replaced.keys() >= set(names):
            return
        self._replaced |= dict.fromkeys(names)
        note = (
            f"rows or agents ask for another {', '.join(self._replaced)} than the run's: the run's sampling is used, "
            f"because training depends on it (temperature {self._sampling.temperature:g} over the whole vocabulary)"
        )
        log.warning("%s", note)
        self._board.notice(Reason.SAMPLING_REPLACED, note)

    def _look(self) -> None:
        """Raises and clears the alarms about rollouts."""
        messages: dict[AlarmReason, str | None] = {
            "EnvironmentFailing": self._environments.message(),
            "NoLedgerEntry": self._known_calls.message(),
        }
        for reason, message in messages.items():
            if message is None:
                self._board.clear_alarm(reason)
            else:
                self._board.set_alarm(reason, message)

    def _count_drop(self, reason: DropReason) -> None:
        with self._lock:
            self._dropped[reason] += 1
        self._board.count("dropped_groups")
        self._board.tally(DROPPED, str(reason))
        self.metrics.put({f"rollout/dropped_{reason}_total": 1.0})
