"""Makes the rollout worker of a run from its spec."""

import logging
from dataclasses import replace
from typing import Protocol

from gymtrain_api.sampling import evaluation_temperature, marked
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer import open_files
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Tasks, ValidationTasks, read_index
from gymtrain_trainer.framework import TrainingSettings
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.evaluate import EvaluationRules
from gymtrain_trainer.rollouts.evaluation import EvaluationSettings
from gymtrain_trainer.rollouts.group import GroupRules
from gymtrain_trainer.rollouts.guard import Look, Versions
from gymtrain_trainer.rollouts.pace import Bounds
from gymtrain_trainer.rollouts.parts import WorkerParts, WorkerSettings
from gymtrain_trainer.rollouts.process.client import RolloutProcess
from gymtrain_trainer.rollouts.report import RolloutRecords, RolloutReport
from gymtrain_trainer.rollouts.runner import RunnerSettings
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.weights import SyncNumbers, SyncStats

log = logging.getLogger(__name__)


class WeightPods(Protocol):
    """What the guard needs of weight sync."""

    stats: SyncStats

    async def pod_versions(self) -> Versions:
        """What each vLLM server holds now."""
        ...


class _GuardedWeights:
    """Weight sync as the guard asks it."""

    def __init__(self, pods: WeightPods) -> None:
        self._pods = pods

    async def look(self) -> Look:
        before = self._pods.stats.repairs
        return Look(await self._pods.pod_versions(), before, self._pods.stats.repairs)


def read_tasks(context: Context, seed: int) -> Tasks:
    """The run's tasks.

    Raises:
        DataError: a dataset is unreadable or names an agent that the run doesn't have.
    """
    return Tasks(read_index(context.paths.data_index), _agents(context), seed)


def read_validation(context: Context, most: int | None) -> ValidationTasks:
    """The tasks that the run is evaluated on, `most` at most.

    Raises:
        DataError: as above.
    """
    return ValidationTasks(read_index(context.paths.data_index), _agents(context), most)


def _agents(context: Context) -> dict[str, str]:
    run = context.run
    # In mode Verify an agent is only a name in the rows; what stands in for it has URLs of its own.
    verifies = run.spec.rollout.mode == "Verify"
    return {name: route.resources_url for name, route in run.verifiers.items()} if verifies else run.agents


def make_worker(
    context: Context,
    board: ProgressBoard,
    tasks: Tasks,
    pods: WeightPods,
    numbering: SyncNumbers,
    settings: TrainingSettings,
    place: Place,
    step: int,
    records: RolloutRecords | None = None,
) -> RolloutWorker:
    """The worker, not started. Takes all open files that the kernel grants this process.

    Args:
        context: of the run.
        board: where it reports.
        tasks: what it draws from.
        pods: weight sync.
        numbering: of this process' weight versions.
        settings: what the framework makes of trainer.config.
        place: in the data, where it begins.
        step: after which it begins.
        records: told of rollouts that end.
    """
    run, spec = context.run, context.run.spec.rollout
    evaluated = evaluation_settings(run.spec)
    concurrent = _rollouts_at_once(spec.max_concurrent, evaluated.concurrent if evaluated is not None else 0)
    runner = runner_settings(context, settings, concurrent, numbering.start)
    process = RolloutProcess(runner, numbering, _GuardedWeights(pods))
    return RolloutWorker(
        WorkerSettings(
            bounds=Bounds(
                group_size=settings.group_size,
                groups_per_step=settings.groups_per_step,
                sync_every_steps=settings.sync_every_steps,
                max_staleness=spec.max_staleness,
                max_concurrent=concurrent,
                total=0 if run.spec.evaluates_only else _groups_left(settings, step),
            ),
            stall_timeout_seconds=spec.stall_timeout_seconds,
            start=place,
        ),
        tasks,
        WorkerParts(
            groups=process.open,
            report=RolloutReport(board, runner.sampling, masks_truncated=spec.mask_truncated, records=records),
            held=lambda: numbering.held,
            prepare=process.launch,
            announcer=(lambda: Announcer(run.broker_url, tasks, settings.group_size))
            if run.broker_url and not run.spec.evaluates_only
            else None,
        ),
    )


def runner_settings(context: Context, settings: TrainingSettings, concurrent: int, first_number: int) -> RunnerSettings:
    """What the run's groups are made by.

    Args:
        context: of the run.
        settings: what the framework makes of trainer.config.
        concurrent: rollouts at once.
        first_number: the last number of a weight version that an earlier process of the attempt may have used.
    """
    run, spec = context.run, context.run.spec.rollout
    limits = RolloutLimits(
        concurrent, spec.timeout_seconds, spec.max_attempts, float(spec.verify_timeout_seconds), spec.on_failure
    )
    evaluated, other = evaluation_settings(run.spec), evaluation_temperature(run.spec)
    records = run.spec.trainer.records.rollouts != "None"
    asked = settings.temperature if other is None else marked(other)
    return RunnerSettings(
        run=run.name,
        attempt=context.attempt,
        first_number=first_number,
        rules=GroupRules(
            settings.group_size,
            spec.max_staleness,
            settings.max_sample_tokens,
            spec.dynamic_sampling,
            spec.on_failure,
            settings.temperature if other is not None else None,
            records,
        ),
        limits=limits,
        sampling=Sampling(settings.temperature, settings.max_completion_tokens),
        ledger_host=run.gateway_pods_host if run.gateway_url else "",
        verifiers=dict(run.verifiers) if spec.mode == "Verify" else None,
        fork_threshold=settings.fork_threshold,
        mask_truncated=spec.mask_truncated,
        evaluation=EvaluationRules(
            # As few as fit where files are short, and as the training has.
            replace(limits, max_concurrent=max(1, evaluated.concurrent * concurrent // spec.max_concurrent)),
            Sampling(asked, settings.max_completion_tokens),
            other,
            records,
        )
        if evaluated is not None
        else None,
    )


def evaluation_settings(spec: GymTrainingRunSpec) -> EvaluationSettings | None:
    """Of the run's evaluations; None where it isn't evaluated."""
    evaluation = spec.evaluates
    if evaluation is None:
        return None
    return EvaluationSettings(
        samples=evaluation.samples_per_task,
        concurrent=evaluation.max_concurrent or spec.rollout.max_concurrent,
        seconds=float(evaluation.timeout_seconds),
        while_training=evaluation.while_training,
    )


def _groups_left(settings: TrainingSettings, step: int) -> int | None:
    """Groups that training will still use. More are not begun: the last steps wait for the long ones among these, and
    don't train on quick ones in their place."""
    if settings.max_steps is None or settings.groups_per_step is None:
        return None
    return max(0, settings.max_steps - step) * settings.groups_per_step


def _rollouts_at_once(wanted: int, beside: int) -> int:
    """Of the training, where an evaluation has `beside` more; both get less where open files are short."""
    files = open_files.raise_files()
    if shortage := open_files.shortage(files, wanted + beside):
        log.warning(shortage)
    return max(1, open_files.rollouts_at_once(files, wanted + beside) * wanted // (wanted + beside))
