"""Which steps are evaluated. Pure, and the same on every rank."""

from collections.abc import Collection

from gymtrain_api.sampling import TEMPERATURES
from gymtrain_api.spec import Evaluation, GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.framework import Steps, TrainingSettings

_WHERE = "spec.evaluation"


def is_due(evaluation: Evaluation, steps: Steps, sync_every: int) -> bool:
    """Whether the weights of a step are evaluated, which vLLM has to get for it."""
    if evaluation.without_training is not None:
        return True
    every = evaluation.every_steps
    wanted = (every > 0 and steps.done % every == 0) or (evaluation.at_end and steps.done == steps.total)
    return steps.done > 0 and wanted and steps.done % sync_every == 0


def missed(evaluation: Evaluation, steps: Steps, sync_every: int, known: Collection[int]) -> bool:
    """Whether a run that goes on from `steps` lacks its last evaluation: one was due, and none of that step or a later
    one is known. `known`: steps that were evaluated."""
    due = (n for n in range(steps.done, 0, -1) if is_due(evaluation, Steps(n, steps.total), sync_every))
    last = next(due, None)
    return last is not None and not any(last <= step <= steps.done for step in known)


def saves(spec: GymTrainingRunSpec, steps: Steps, sync_every: int) -> bool:
    """Whether a checkpoint of the step is wanted for its evaluation."""
    evaluation = spec.evaluates
    wanted = evaluation is not None and evaluation.keep_best and spec.trainer.checkpoint is not None
    return wanted and evaluation is not None and is_due(evaluation, steps, sync_every)


def check_evaluation(spec: GymTrainingRunSpec, settings: TrainingSettings) -> list[Finding]:
    """Preflight's look at spec.evaluation."""
    evaluation, sync = spec.evaluates, settings.sync_every_steps
    if evaluation is None:
        return []
    findings = []
    trains = evaluation.without_training is None
    if trains and evaluation.every_steps % sync:
        message = (
            f"is {evaluation.every_steps}, and vLLM gets weights every {sync} steps "
            f"(trainer.config.weight_sync_steps): set a multiple of {sync}"
        )
        findings.append(Finding(where=f"{_WHERE}.everySteps", message=message))
    if trains and evaluation.at_end and settings.max_steps is not None and settings.max_steps % sync:
        message = (
            f"vLLM never gets the weights of the last step, {settings.max_steps}: it gets some every {sync} steps "
            f"(trainer.config.weight_sync_steps). Make max_steps a multiple of {sync}, or set atEnd: false"
        )
        findings.append(Finding(where=f"{_WHERE}.atEnd", message=message))
    if evaluation.temperature is not None:
        least, most = TEMPERATURES
        temperature = float(evaluation.temperature)
        if temperature and not least <= temperature <= most:
            message = f"must be 0, or from {least:g} to {most:g}, the range that vLLM supports"
            findings.append(Finding(where=f"{_WHERE}.temperature", message=message))
    return findings
