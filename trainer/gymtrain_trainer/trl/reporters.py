"""transformers' trackers (`report_to`), kept from ending or holding up a run.

Their callbacks are taken out of TRL's trainer, and called by `Reporters` on rank 0: each in a thread of its own, in
order, with a copy of the trainer's state. So an exception, a server that doesn't answer or a slow disk costs reports
of that tracker, and nothing else: the alarm ReporterFailed says which. They get TRL's own numbers, the run's series
and, where they have tables, some rollouts.

Not passed on: checkpoints and the model, which trackers would upload from inside the training loop.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from gymtrain_trainer.framework import ShownRollout, StepCallbacks
from gymtrain_trainer.monitoring.guarded_calls import GuardedCalls
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.trl import internals
from gymtrain_trainer.trl.reporter_settings import UID_TAG

END_SECONDS = 60.0
STOPPED_SECONDS = 5.0  # the pod has its grace period alone
_COLUMNS = ("step", "agent", "reward", "prompt", "completion", "tokens", "turns", "model_version")
_TABLE = "gymtrain/rollouts"


def take_reporters(trainer: Any) -> list[tuple[str, TrainerCallback]]:
    """Removes the callbacks of `report_to` from a trainer, and returns them by name. On all ranks."""
    names = list(trainer.args.report_to)
    classes = get_reporting_integration_callbacks(names)
    return [
        (name, callback)
        for name, kind in zip(names, classes, strict=True)
        if (callback := trainer.pop_callback(kind)) is not None
    ]


class Tracker:
    """One tracker: what its library offers beside numbers. All methods are called in its own thread."""

    def __init__(self, callback: Any, facts: Mapping[str, Any]) -> None:
        """`facts`: of the run, for the tracker's config."""
        self.callback = callback
        self.facts = facts

    def prepare(self, folder: Path, step: int) -> None:
        """Before the callback begins, at `step`; `folder`: where its files go."""

    def describe(self) -> None:
        """After it has begun: tells the run's facts."""

    def show(self, step: int, rows: list[list[Any]]) -> None:
        """Shows rollouts as a table, where the tracker has tables."""

    def finish(self, *, failed: bool) -> None:
        """After the callback's own end."""


class TensorBoard(Tracker):
    """Its files."""

    def prepare(self, folder: Path, step: int) -> None:
        """What an earlier attempt wrote of the steps that are made again is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        purge = {"purge_step": step + 1} if step else {}
        self.callback.tb_writer = SummaryWriter(log_dir=os.environ["TENSORBOARD_LOGGING_DIR"], **purge)

    def describe(self) -> None:
        import yaml

        text = yaml.safe_dump(dict(self.facts), sort_keys=False)
        self.callback.tb_writer.add_text("gymtrain", "    " + text.replace("\n", "\n    "))


class WandB(Tracker):
    """Weights & Biases."""

    def describe(self) -> None:
        import wandb

        wandb.config.update({"gymtrain": dict(self.facts)}, allow_val_change=True)

    def show(self, step: int, rows: list[list[Any]]) -> None:
        import wandb

        wandb.log({_TABLE: wandb.Table(columns=list(_COLUMNS), data=rows), "train/global_step": step})

    def finish(self, *, failed: bool) -> None:
        import wandb

        if wandb.run is not None:
            wandb.finish(exit_code=int(failed))


class Trackio(Tracker):
    """Trackio: a database in the run's folder, or a Space."""

    def prepare(self, folder: Path, step: int) -> None:
        """Trackio only warns, in a thread of its own, where it can't write."""
        database = Path(os.environ["TRACKIO_DIR"])
        database.mkdir(parents=True, exist_ok=True)
        if not os.access(database, os.W_OK):
            raise PermissionError(f"{database} (TRACKIO_DIR) can't be written to")

    def describe(self) -> None:
        import trackio

        trackio.config.update({"gymtrain": dict(self.facts)}, allow_val_change=True)

    def show(self, step: int, rows: list[list[Any]]) -> None:
        import pandas
        import trackio

        table = trackio.Table(dataframe=pandas.DataFrame(rows, columns=list(_COLUMNS)))
        trackio.log({_TABLE: table, "train/global_step": step})


class MLflow(Tracker):
    """MLflow: a server, or files in the run's folder."""

    def prepare(self, folder: Path, step: int) -> None:
        """A later attempt goes on with the same MLflow run, which it finds by its tag."""
        import mlflow

        uid = self.facts["uid"]
        if not uid or os.environ.get("MLFLOW_RUN_ID"):
            return
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
        experiment = mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
        found = mlflow.MlflowClient().search_runs([experiment.experiment_id], f"tags.`{UID_TAG}` = '{uid}'")
        if found:
            os.environ["MLFLOW_RUN_ID"] = found[0].info.run_id

    def describe(self) -> None:
        import mlflow

        internals.log_to_mlflow_at_once(self.callback)
        mlflow.log_dict(dict(self.facts), "gymtrain/run.yaml")

    def show(self, step: int, rows: list[list[Any]]) -> None:
        import mlflow

        columns = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
        mlflow.log_table(columns, f"gymtrain/rollouts/step-{step:08d}.json")

    def finish(self, *, failed: bool) -> None:
        import mlflow

        if mlflow.active_run() is not None:
            mlflow.end_run("FAILED" if failed else "FINISHED")


_TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


class Reporters(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Calls the trackers. To be added behind StepTeller, which makes the series."""

    def __init__(
        self,
        taken: Sequence[tuple[str, Any]],
        callbacks: StepCallbacks,
        stop: StopSignal,
        facts: Mapping[str, Any],
        folder: Path,
    ) -> None:
        """
        Args:
            taken: callbacks by name.
            callbacks: have the series, and are told of failures.
            stop: the pod is asked to end, so trackers get less time.
            facts: of the run.
            folder: of the run.
        """
        self._callbacks = callbacks
        self._stop = stop
        self._folder = folder
        self._failing: dict[str, str] = {}
        self._begun = self._ended = False
        self._parts = {
            name: (_TRACKERS.get(name, Tracker)(callback, facts), GuardedCalls(name, self._teller(name)))
            for name, callback in taken
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts them."""
        self._begun = True
        now, model = copy.copy(state), kwargs.get("model")
        for tracker, calls in self._parts.values():

            def begin(tracker: Tracker = tracker) -> None:
                tracker.prepare(self._folder, now.global_step)
                tracker.callback.on_train_begin(args, now, copy.copy(control), model=model)

            calls.call(begin, vital=True)
            calls.call(tracker.describe)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reports TRL's numbers and the run's series."""
        now, numbers = copy.copy(state), {**(logs or {}), **self._callbacks.series()}
        rows = [_row(now.global_step, rollout) for rollout in self._callbacks.shown()]
        for tracker, calls in self._parts.values():

            def report(tracker: Tracker = tracker) -> None:
                tracker.callback.on_log(args, now, copy.copy(control), logs=dict(numbers), model=None)

            def show(tracker: Tracker = tracker) -> None:
                tracker.show(now.global_step, rows)

            calls.call(report)
            if rows:
                calls.call(show)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training is over, or stopped."""
        self.end(args, state, control, failed=False)

    def end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, failed: bool) -> None:
        """Ends them, and waits some time for what they haven't sent. Only the first call counts, of those that were
        started."""
        if self._ended or not self._begun:
            return
        self._ended, now = True, copy.copy(state)
        seconds = STOPPED_SECONDS if self._stop.requested or failed else END_SECONDS
        for tracker, calls in self._parts.values():

            def finish(tracker: Tracker = tracker) -> None:
                try:
                    tracker.callback.on_train_end(args, now, copy.copy(control), model=None)
                finally:
                    tracker.finish(failed=failed)

            calls.call(finish)
        for _, calls in self._parts.values():
            calls.end(seconds)

    def _teller(self, name: str) -> Callable[[str | None], None]:
        def tell(why: str | None) -> None:
            self._callbacks.on_reporter(name, why)

        return tell


def _row(step: int, rollout: ShownRollout) -> list[Any]:
    return [
        step,
        rollout.agent,
        rollout.reward,
        rollout.prompt,
        rollout.completion,
        rollout.tokens,
        rollout.turns,
        rollout.model_version,
    ]
