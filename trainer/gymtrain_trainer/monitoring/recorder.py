"""The one writer of a run's records, on rank 0: rewards.csv, evaluations.csv, and the samples and rollouts that
`spec.trainer.records` asks for.

```
trainer's thread    step N ─► its records wait ─► a row of rewards.csv          step N + 1 ...
                                   │ at most 2 steps; the next one is left out
writer's thread                    └─► draft ─► rename ─► the oldest files go
```

A record that can't be written costs that record, never the run: the alarm RecordsFailed stands until the next one is
written. Rows of the CSV files wait for that, samples and rollouts are lost. What is left out is counted, and told once.
"""

import logging
import random
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gymtrain_api.conditions import Reason
from gymtrain_api.spec import Records
from gymtrain_trainer.framework import TrainedSample
from gymtrain_trainer.monitoring.ended_rollouts import FOLDER as ROLLOUTS_FOLDER
from gymtrain_trainer.monitoring.ended_rollouts import EndedRollouts, StepRollouts
from gymtrain_trainer.monitoring.evaluation_scores import EVALUATIONS_FILE, EvaluationRow, EvaluationsFile
from gymtrain_trainer.monitoring.record import REWARDS_FILE, RewardsFile, StepFile, StepRecord, StepRow
from gymtrain_trainer.monitoring.sample_rows import FOLDER, StepSamples
from gymtrain_trainer.monitoring.step_files import StepFiles
from gymtrain_trainer.monitoring.step_tables import StepTable
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.buffer import UsedGroup
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd

log = logging.getLogger(__name__)

RECORDED_STEPS = "recorded_steps"  # a tally of the board, by outcome

TOKENIZER_FILE = "_tokenizer.json"

_WAITING = 2  # steps
_END_SECONDS = 10.0


class _Rows[Row: StepRow]:
    """A file, and the rows that it did not take yet."""

    def __init__(self, file: StepFile[Row]) -> None:
        self.file = file
        self._late: list[Row] = []

    def add(self, rows: Sequence[Row]) -> OSError | None:
        """Writes them behind the late ones; the error where the volume doesn't take them."""
        self._late += rows
        try:
            self.file.append(*self._late)
        except OSError as error:
            return error
        self._late = []
        return None


class Recorder:
    """The records of one process. All but its own thread's work is called from the trainer's thread."""

    def __init__(
        self,
        folder: Path,
        settings: Records,
        board: ProgressBoard,
        label: Callable[[int], str],
        *,
        evaluates: bool = False,
        tokenizer: Path | None = None,
    ) -> None:
        """
        Args:
            folder: of the run.
            settings: which samples and rollouts are written, and how.
            board: where alarm, notice and counts go.
            label: of a model version.
            evaluates: the run is evaluated.
            tokenizer: its tokenizer.json, which is copied to the samples: who reads them wants the tokens' texts.
        """
        self._tokenizer = tokenizer
        self._folder = folder
        self._evaluates = evaluates
        self._settings = settings
        self._board = board
        self._label = label
        self._rewards = _Rows(RewardsFile(folder / REWARDS_FILE))
        self._evaluated = EvaluationsFile(folder / EVALUATIONS_FILE)
        self._evaluations = _Rows(self._evaluated)
        self.rollouts = EndedRollouts(settings, label)
        self._files = {
            StepSamples: StepFiles(folder / FOLDER, settings),
            StepRollouts: StepFiles(folder / ROLLOUTS_FOLDER, settings),
        }
        self._changed = threading.Condition()
        self._waiting: deque[Sequence[StepTable]] = deque()
        self._writing = False
        self._ending = False
        self._telling = threading.Lock()
        self._failing: dict[str, str] = {}  # why, by what can't be written
        self._incomplete: dict[str, None] = {}  # what was told
        self._thread = threading.Thread(target=self._write, name="records", daemon=True)

    def begin(self, step: int) -> None:
        """Training goes on from `step`: records of later steps are of another way, and are removed."""
        self._rewards.file.begin(step)
        if self._evaluates:
            self._evaluated.begin(step)
        for files in self._files.values():
            files.begin(step)
        if self._settings.samples != "None":
            self._copy_tokenizer()
        if self._settings.on:
            self._thread.start()

    def _copy_tokenizer(self) -> None:
        """For what colours tokens; nothing else needs it. Readers of the folder pass over names with _."""
        if self._tokenizer is None or not self._tokenizer.exists():
            return
        try:
            (self._folder / FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(self._tokenizer, self._folder / FOLDER / TOKENIZER_FILE)
        except OSError as error:
            log.warning("the tokenizer is not among the records: %s", error)

    def step(self, step: int, used: Sequence[UsedGroup], trained: Sequence[TrainedSample]) -> None:
        """A step has ended: its records are handed to the writer, if there is room. Copies no tokens."""
        samples = self._samples(step, self._chosen(step, used, self._settings.samples), trained)
        rollouts = self.rollouts.take(step, used, self._chosen(step, used, self._settings.rollouts), trained)
        self._hand_over([table for table in (samples, rollouts) if table is not None])
        if self.rollouts.left_out:
            self._tell_incomplete("some rollouts that were dropped or lost are not recorded: there are too many a step")

    def report(self, record: StepRecord) -> None:
        """Adds a row to rewards.csv, behind those that could not be written before."""
        self._tell(REWARDS_FILE, self._rewards.add([record]))

    def evaluation(self, rows: Sequence[EvaluationRow]) -> None:
        """Adds an evaluation to evaluations.csv, in the same way."""
        self._tell(EVALUATIONS_FILE, self._evaluations.add(rows))

    def evaluated(self, step: int, version: int, end: EvaluationEnd) -> None:
        """Its rollouts go where those of the step are."""
        rollouts = self.rollouts.evaluated(step, version, end)
        self._hand_over([rollouts] if rollouts is not None else [])

    def evaluations(self) -> list[EvaluationRow]:
        """Those of the steps that the run goes on from; called after `begin`."""
        return self._evaluated.rows()

    def settle(self) -> None:
        """Waits some seconds for what isn't written yet: a checkpoint begins to count, and no attempt makes its steps
        again."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._writing, _END_SECONDS)

    def end(self) -> None:
        """Waits some seconds for what isn't written yet."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if not self._thread.is_alive():
            return
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            log.warning("records of the last steps are not written: the volume takes them too slowly")

    def _samples(self, step: int, chosen: Sequence[UsedGroup], trained: Sequence[TrainedSample]) -> StepSamples | None:
        if not chosen:
            return None
        versions = {one.version for one in chosen}
        versions.update(version for one in chosen for sample in one.group.samples for version in sample.versions)
        return StepSamples(step, chosen, trained, {version: self._label(version) for version in versions})

    def _hand_over(self, tables: Sequence[StepTable]) -> None:
        if not tables:
            return
        with self._changed:
            room = len(self._waiting) < _WAITING
            if room:
                self._waiting.append(tables)
                self._changed.notify()
        if not room:
            self._board.tally(RECORDED_STEPS, "dropped")
            self._tell_incomplete(
                "records of some steps are not written: the checkpoint volume takes them more slowly than steps come"
            )

    def _chosen(self, step: int, used: Sequence[UsedGroup], which: str) -> Sequence[UsedGroup]:
        """At random, and the same whenever the step is made: groups come in an order that isn't."""
        match which:
            case "None":
                return ()
            case "All":
                return used
            case "Sampled":
                count = min(self._settings.groups_per_step, len(used))
                picked = random.Random(step).sample(range(len(used)), count)  # noqa: S311 - no secret
                return [used[place] for place in sorted(picked)]
            case _:
                raise AssertionError(which)

    # --- the writer's thread ---

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                tables, self._writing = self._waiting.popleft(), True
            self._write_step(tables)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _write_step(self, tables: Sequence[StepTable]) -> None:
        try:
            removed = max([self._files[type(table)].write(table) for table in tables])
        except Exception as error:  # whatever it is, it is not worth a run
            log.exception("records of step %d are not written", tables[0].step)
            self._board.tally(RECORDED_STEPS, "failed")
            self._tell("the records of a step", error)
            return
        self._board.tally(RECORDED_STEPS, "written")
        self._tell("the records of a step", None)
        if removed:
            self._board.tally(RECORDED_STEPS, "removed", by=removed)
            self._tell_incomplete(
                "the oldest steps' records are removed: all files together reach spec.trainer.records.maxSize, "
                f"{self._settings.max_size}"
            )

    # --- what the user reads: the same words at each step, as each change is news ---

    def _tell(self, what: str, error: Exception | None) -> None:
        """`what` could be written, or not."""
        with self._telling:
            self._failing.pop(what, None)
            if error is not None:
                self._failing[what] = (isinstance(error, OSError) and error.strerror) or repr(error)
            if not self._failing:
                self._board.clear_alarm("RecordsFailed")
                return
            failing = ", ".join(f"{name} ({why})" for name, why in sorted(self._failing.items()))
            self._board.set_alarm(
                "RecordsFailed",
                f"the checkpoint volume doesn't take the run's records: {failing}. Make room there. Training continues",
            )

    def _tell_incomplete(self, text: str) -> None:
        with self._telling:
            if text not in self._incomplete:
                log.warning("%s", text)
                self._incomplete[text] = None
                self._board.notice(Reason.RECORDS_INCOMPLETE, "; ".join(self._incomplete))
