"""The parts that only rank 0 has: rollouts, weight sync, the watchdog, and their reports."""

import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Task, Tasks, ValidationTasks
from gymtrain_trainer.evaluation.best import BestCheckpoint
from gymtrain_trainer.evaluation.evaluations import Evaluations
from gymtrain_trainer.framework import Trainer, TrainingSettings
from gymtrain_trainer.monitoring.recorder import Recorder
from gymtrain_trainer.monitoring.sample_check import SampleChecker, share_to_check
from gymtrain_trainer.monitoring.step_alarms import SampleAlarms
from gymtrain_trainer.monitoring.watchdog import Watchdog
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.build import evaluation_settings, make_worker, read_tasks, read_validation
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weight_sync_setup import fill_prompts, make_weight_sync, parity_check
from gymtrain_trainer.weights import SyncNumbers, Transport, WeightStore, WeightSync
from gymtrain_trainer.weights.transports.transport import NamedTensors


class TrainedModel:
    """The model that is trained, for parts that are made before the trainer: it answers them once it is attached."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None

    def attach(self, trainer: Trainer) -> None:
        """From now on `trainer` answers."""
        self._trainer = trainer

    def parameters(self) -> NamedTensors:
        """What a weight sync sends."""
        return self._attached().parameters()

    def config(self) -> Any:
        """transformers' configuration."""
        return self._attached().model_config

    def _attached(self) -> Trainer:
        assert self._trainer is not None, "the model is needed before the trainer is built"
        return self._trainer


@dataclass
class RankZero:
    """The parts of rank 0."""

    board: ProgressBoard
    model: TrainedModel
    tasks: Iterable[Task]  # in the order in which they come first
    worker: RolloutWorker
    weight_sync: WeightSync
    numbering: SyncNumbers
    watchdog: Watchdog
    alarms: SampleAlarms
    checker: SampleChecker | None
    prompts: list[list[int]]  # of the parity check; filled once there is a tokenizer
    servers: Future[None]
    stop: StopSignal
    recorder: Recorder
    evaluations: Evaluations | None = None

    def __post_init__(self) -> None:
        self.board.in_flight = self.worker.in_flight

    def attach(self, trainer: Trainer) -> None:
        """The trainer is made."""
        self.model.attach(trainer)
        fill_prompts(self.prompts, self.tasks, trainer.tokenizer)

    def wait_for_servers(self) -> None:
        """Until all of them are up: as late as can be, since reading a large checkpoint takes as long as they do.

        Raises:
            ServersError: one wasn't in time.
            InterruptedBySignal: SIGTERM.
        """
        with self.stop.waiting():
            self.servers.result()

    def settle_transport(self) -> Transport:
        """The weight transport, chosen once the servers are up; raises what `wait_for_servers` and `WeightSync.settle`
        do."""
        self.wait_for_servers()
        return self.weight_sync.settle()

    def end(self) -> None:
        """Ends the parts after training, successful or not."""
        self.watchdog.end()
        self.recorder.end()
        if self.checker is not None:
            self.checker.total()


def make_rank_zero(
    context: Context,
    board: ProgressBoard,
    store: WeightStore,
    stop: StopSignal,
    servers: Future[None],
    settings: TrainingSettings,
    place: Place,
    step: int,
) -> RankZero:
    """The parts, none of them started but the rollouts' process.

    Args:
        context: of the run.
        board: where all of them report.
        store: of the weights that vLLM fetches.
        stop: ends waits.
        servers: done once the run's servers are up.
        settings: what the framework makes of trainer.config.
        place: in the data, where rollouts begin.
        step: after which training begins.
    """
    spec = context.run.spec
    activity, model = Activity(), TrainedModel()
    parity = parity_check(spec.weight_sync.parity_threshold)
    checker = _checker(context, board, settings, model)
    weight_sync = make_weight_sync(
        context,
        board,
        store,
        stop=stop,
        activity=activity,
        parameters=model.parameters,
        parity=parity,
        watch=checker.watch if checker is not None else None,
    )
    tasks = read_tasks(context, seed=settings.seed)
    validation = read_validation(context, spec.evaluates.max_tasks) if spec.evaluates is not None else None
    recorder = Recorder(
        context.run_folder,
        spec.trainer.records,
        board,
        weight_sync.numbers.label,
        evaluates=spec.evaluates is not None,
        tokenizer=context.paths.model / "tokenizer.json",
    )
    worker = make_worker(
        context, board, tasks, weight_sync, weight_sync.numbers, settings, place, step, recorder.rollouts
    )
    weight_sync.numbers.on_arrival = worker.weights_arrived
    worker.prepare()  # the model takes longer to load
    # Its servers go away as this pod does: rollouts that fail then would be counted, and their rows be done with.
    stop.then(worker.stop)

    @contextmanager
    def while_waiting() -> Iterator[None]:
        if weight_sync.wants_resend:  # no other moment is as good: nobody else uses the model now
            weight_sync.resend()
        with activity.doing(Doing.ROLLOUTS), stop.waiting():
            yield

    worker.buffer.while_waiting = while_waiting
    if checker is not None:
        worker.buffer.on_taken = checker.take
    return RankZero(
        board=board,
        model=model,
        tasks=_in_order(tasks, validation),
        worker=worker,
        weight_sync=weight_sync,
        numbering=weight_sync.numbers,
        watchdog=Watchdog(
            board,
            activity,
            before_first_step=float(spec.rollout.timeout_seconds),
            unsynced_pods=lambda: weight_sync.stats.unreachable,
            evaluates=lambda: worker.evaluates,
        ),
        alarms=SampleAlarms(settings.sync_every_steps),
        checker=checker,
        prompts=parity.prompts,
        servers=servers,
        stop=stop,
        recorder=recorder,
        evaluations=_evaluations(context, board, settings, worker, weight_sync, recorder, stop, validation),
    )


def _in_order(tasks: Tasks, validation: ValidationTasks | None) -> Iterator[Task]:
    """Tasks to take prompts from: those that are trained on, or else those that the model is evaluated on."""
    if tasks.rows:
        return map(tasks.at, itertools.count())
    return map(validation.at, range(len(validation))) if validation is not None else iter(())


def _evaluations(
    context: Context,
    board: ProgressBoard,
    settings: TrainingSettings,
    worker: RolloutWorker,
    weight_sync: WeightSync,
    recorder: Recorder,
    stop: StopSignal,
    tasks: ValidationTasks | None,
) -> Evaluations | None:
    spec = context.run.spec
    evaluation, of_each = spec.evaluates, evaluation_settings(spec)
    if evaluation is None or of_each is None or tasks is None:
        return None

    def meanwhile() -> None:
        if weight_sync.wants_resend:
            weight_sync.resend()

    return Evaluations(
        evaluation,
        of_each,
        tasks,
        sync_every=settings.sync_every_steps,
        worker=worker,
        numbering=weight_sync.numbers,
        recorder=recorder,
        board=board,
        stop=stop,
        best=BestCheckpoint(context.run_folder)
        if evaluation.keep_best and spec.trainer.checkpoint and not spec.evaluates_only
        else None,
        meanwhile=meanwhile,
    )


def _checker(
    context: Context, board: ProgressBoard, settings: TrainingSettings, model: TrainedModel
) -> SampleChecker | None:
    share, spec = share_to_check(os.environ), context.run.spec
    if not share:
        return None
    from gymtrain_trainer.monitoring.kept_weights import KeptWeights

    return SampleChecker(
        KeptWeights(spec.rollout.max_staleness + 1),
        model.config,
        board,
        temperature=settings.temperature,
        share=share,
    )
