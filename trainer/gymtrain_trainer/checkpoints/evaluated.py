"""The models of a run that evaluates without training: that of spec.model, or the checkpoints of another run."""

from dataclasses import dataclass
from pathlib import Path

from gymtrain_api.resume import ResumeFrom
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding, RunConfig
from gymtrain_trainer.checkpoints.folder import Checkpoint
from gymtrain_trainer.checkpoints.resume import find_all, other_model, volume_of
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import ResumeError


@dataclass(frozen=True)
class EvaluatedModel:
    """One of them: the step that made it, 0 for that of spec.model, and its folder."""

    step: int
    folder: Path


def evaluated_models(context: Context) -> list[EvaluatedModel]:
    """All of them, by step.

    Raises:
        ResumeError: the checkpoints aren't there, or are of another model.
    """
    named = _named(context.run.spec)
    if named is None:
        return [EvaluatedModel(0, context.paths.model)]
    field, source = named
    found = _found(context.run.spec, field, source, context.paths.resume, context.paths.model)
    return [EvaluatedModel(checkpoint.state.step, checkpoint.folder) for checkpoint in found]


def check_evaluated_models(run: RunConfig, runs: Path, model: Path) -> list[Finding]:
    """Preflight's look at spec.evaluation.withoutTraining. `runs`: folders of checkpoints, by run; `model`: of
    spec.model."""
    named = _named(run.spec)
    if named is None:
        return []
    field, source = named
    if source.run == run.name:
        message = "is the name of this run, which sets earlier checkpoints of its name aside: give this run another one"
        return [Finding(where=field, message=message)]
    try:
        _found(run.spec, field, source, runs, model)
    except ResumeError as error:
        return [Finding(where=field, message=str(error).removeprefix(f"{field}: "))]
    return []


def _named(spec: GymTrainingRunSpec) -> tuple[str, ResumeFrom] | None:
    return spec.reads_from if spec.evaluates_only else None


def _found(spec: GymTrainingRunSpec, field: str, source: ResumeFrom, runs: Path, model: Path) -> list[Checkpoint]:
    found = find_all(runs / source.run, source, volume_of(spec, source), field)
    if problem := next(filter(None, (other_model(checkpoint, model) for checkpoint in found)), ""):
        raise ResumeError(f"{field}: {problem}")
    return found
