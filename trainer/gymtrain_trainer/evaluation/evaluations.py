"""The evaluations of one process of a run, on the main thread of rank 0.

```
step N ends ─► wait for the evaluation before ─► sync ─► vLLM holds the weights ─► evaluation of N begins
                                                                                    │ beside step N + 1
step N + 1 ends ─► wait for it: one weight version a score ─► its rows, status, metrics, best checkpoint ─► sync
```
The wait also keeps the checkpoint of step N: the framework removes old ones when it saves the next. After the last
step, and where a run goes on at its end, nothing comes later, so it waits right after the sync.

What SIGTERM ends is not recorded: the process that goes on from the checkpoint makes one of the weights that it has.
"""

import concurrent.futures
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from gymtrain_api.spec import Evaluation
from gymtrain_trainer.data.rows import ValidationTasks
from gymtrain_trainer.errors import InterruptedBySignal, TrainerError
from gymtrain_trainer.evaluation.best import BestCheckpoint
from gymtrain_trainer.evaluation.schedule import is_due, missed
from gymtrain_trainer.framework import Steps
from gymtrain_trainer.monitoring.evaluation_scores import ALL, EvaluationRow, evaluation_rows
from gymtrain_trainer.monitoring.recorder import Recorder
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd, EvaluationRun, EvaluationSettings
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import SyncNumbers

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_BEGIN_SECONDS = 120.0  # from the wait for an evaluation that runs no longer than its deadline


class Evaluations:
    """When they begin, and what follows from them."""

    def __init__(
        self,
        evaluation: Evaluation,
        settings: EvaluationSettings,
        tasks: ValidationTasks,
        *,
        sync_every: int,
        worker: RolloutWorker,
        numbering: SyncNumbers,
        recorder: Recorder,
        board: ProgressBoard,
        stop: StopSignal,
        best: BestCheckpoint | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            evaluation: of the spec.
            settings: of each evaluation.
            tasks: that the run is evaluated on.
            sync_every: steps of one weight version.
            worker: makes the rollouts.
            numbering: of the weight versions.
            recorder: of evaluations.csv.
            board: where results go.
            stop: ends waits.
            best: None where no checkpoint is kept.
            meanwhile: called now and then while the main thread waits; raises what a weight sync failed with.
        """
        self._evaluation = evaluation
        self._settings = settings
        self._tasks = tasks
        self._sync_every = sync_every
        self._worker = worker
        self._numbering = numbering
        self._recorder = recorder
        self._board = board
        self._stop = stop
        self._best = best
        self._meanwhile = meanwhile
        self._running: tuple[int, EvaluationRun] | None = None  # with the step
        self._highest: EvaluationRow | None = None

    def begin(self, steps: Steps) -> None:
        """Training begins, maybe from a checkpoint; before the first sync, and after `Recorder.begin`."""
        known = [row for row in self._recorder.evaluations() if row.environment == ALL]
        for row in known:
            self._note(row)
        if self._best is not None:
            with self._forgiving():
                self._best.begin(steps.done)
        if self._evaluation.without_training is not None:
            return  # each of its models is a step that ends
        first = self._evaluation.at_start and not known
        if first or missed(self._evaluation, steps, self._sync_every, {row.step for row in known}):
            self._begin(steps.done)

    def step_ended(self, steps: Steps) -> None:
        """After the optimizer's step, before its sync and its checkpoint.

        Raises:
            TrainerError: the rollout worker has died, or the evaluation doesn't end.
            WeightsError: what a weight sync failed with.
        """
        self._wait()
        if is_due(self._evaluation, steps, self._sync_every) and not self._stop.requested:
            self._begin(steps.done)

    def synced(self, steps: Steps) -> None:
        """After a weight sync; raises as `step_ended`."""
        if steps.done >= steps.total:
            self._wait()

    def saved(self) -> None:
        """A checkpoint was saved."""
        if self._best is not None:
            with self._forgiving():
                self._best.saved()

    def _begin(self, step: int) -> None:
        run = EvaluationRun(self._tasks, self._settings, self._numbering.model_versions + 1)
        self._running = step, run
        self._worker.evaluate(run)

    def _wait(self) -> None:
        if self._running is None:
            return
        step, run = self._running
        # SIGTERM is no error here: other ranks are in the collectives of a sync, and all end at the step's end.
        with contextlib.suppress(InterruptedBySignal, concurrent.futures.CancelledError):
            with self._stop.waiting():
                end = self._ended(run)
            self._running = None
            self._finish(step, run, end)

    def _ended(self, run: EvaluationRun) -> EvaluationEnd:
        limit = time.monotonic() + self._settings.seconds + _BEGIN_SECONDS
        while True:
            try:
                return run.end.result(_LOOK_SECONDS)
            except TimeoutError:
                self._stop.check()
                self._worker.check_health()
                self._meanwhile()
            if time.monotonic() > limit:
                raise TrainerError(
                    f"an evaluation has not ended {_BEGIN_SECONDS:g} s after its deadline of "
                    f"{self._settings.seconds:g} s (spec.evaluation.timeoutSeconds)"
                )

    def _finish(self, step: int, run: EvaluationRun, end: EvaluationEnd) -> None:
        rows = evaluation_rows(
            end,
            step=step,
            version=self._numbering.label(run.version),
            samples=self._settings.samples,
            pass_reward=float(self._evaluation.pass_reward),
            now=time.time(),
        )
        self._recorder.evaluation(rows)
        self._recorder.evaluated(step, run.version, end)
        print(evaluation_line(rows), flush=True)
        _log(rows, end)
        self._note(rows[0])
        values = {row.environment: row.numbers() for row in rows}
        self._board.set_evaluation(values)
        names = {"" if name == ALL else f"{name}/": numbers for name, numbers in values.items()}
        told = {f"eval/{name}{key}": value for name, numbers in names.items() for key, value in numbers.items()}
        self._worker.metrics.put(told | {"eval/step": float(step)})
        if self._best is not None:
            with self._forgiving():
                self._best.offer(rows)

    def _note(self, row: EvaluationRow) -> None:
        """On the board: the last one, and the best."""
        if row.reward is None:
            return
        best = self._highest
        if row.counts and (best is None or best.reward is None or row.reward > best.reward):
            best = self._highest = row
        self._board.update(
            validation_reward=row.reward,
            validation_step=row.step,
            best_validation_reward=best.reward if best is not None else None,
            best_step=best.step if best is not None else None,
        )

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """A volume that doesn't take the best checkpoint costs that copy, not the run."""
        try:
            yield
        except OSError as error:
            text = f"the best checkpoint could not be kept: {error}. Make room on the checkpoint volume"
            log.error("%s", text)
            self._board.set_alarm("CheckpointFailed", text)


def evaluation_line(rows: Sequence[EvaluationRow]) -> str:
    """One line of JSON for the pod's log; `rows`: that of all environments first."""
    first = rows[0]
    head = {"step": first.step, "version": first.version, "k": first.k, "seconds": first.seconds}
    environments = {row.environment: row.numbers() | {"failures": row.failures} for row in rows}
    return json.dumps({"event": "evaluation", **head, "environments": environments})


def _log(rows: Sequence[EvaluationRow], end: EvaluationEnd) -> None:
    for row in rows if len(rows) > 2 else rows[:1]:
        interval = f" ({row.reward_low:.3f} to {row.reward_high:.3f})" if row.reward_low is not None else ""
        mean = f"{row.reward:.3f}{interval}" if row.reward is not None else "unknown"
        log.info("evaluation of step %d, %s: reward %s of %d tasks", row.step, row.environment, mean, row.tasks)
    if rows[0].failed:
        errors = {one.failure: one.error for task in end.tasks for one in task.rollouts if one.failure}
        examples = "; ".join(f"{kind}: {error}" for kind, error in sorted(errors.items()))
        log.warning("rollouts of the evaluation failed (%s). The last of each kind: %s", rows[0].failures, examples)
