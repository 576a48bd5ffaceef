"""`python -m gymtrain_trainer.preflight`: checks the trainer's settings and the model before anything expensive starts.

Prints one `TrainerPreflight` on stdout.
"""

import gc
import os
import time
from collections.abc import Mapping

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import PREFLIGHT_MARK, Finding, TrainerPreflight
from gymtrain_trainer.checkpoints.evaluated import check_evaluated_models
from gymtrain_trainer.checkpoints.resume import check_resume
from gymtrain_trainer.context import read_paths, read_run_config
from gymtrain_trainer.evaluation.schedule import check_evaluation
from gymtrain_trainer.framework import Framework, load_framework
from gymtrain_trainer.preflight.context_length import served_context
from gymtrain_trainer.preflight.model_folder import check_model_folder
from gymtrain_trainer.push import CHECK
from gymtrain_trainer.pushing import run_push

_PUSH_CHECK_SECONDS = 60.0


def preflight(framework: Framework, environ: Mapping[str, str] = os.environ) -> TrainerPreflight:
    """The verdict on the run that run.json describes."""
    started = time.monotonic()
    run, paths = read_run_config(environ), read_paths(environ)
    spec, model = run.spec, paths.model
    settings = framework.settings(spec, None)
    context, misfits = served_context(model, spec)
    findings = check_model_folder(model, spec.model.source) + misfits
    findings += framework.check_settings(spec, context)
    findings += check_evaluation(spec, settings)
    findings += check_resume(run, paths.resume, model, settings)
    findings += check_evaluated_models(run, paths.resume, model)
    warnings: list[Finding] = []
    if not findings:  # what is known to be wrong would only be said again, in a library's words
        findings, warnings = framework.rehearse(spec, model)
        if spec.trainer.push is not None:
            refused, doubtful = _check_push(environ)
            findings, warnings = findings + refused, warnings + doubtful
    return TrainerPreflight(
        findings=findings,
        warnings=warnings,
        max_steps=settings.max_steps,
        seconds=round(time.monotonic() - started, 3),
    )


def preflight_of_command(environ: Mapping[str, str] = os.environ) -> TrainerPreflight:
    """The verdict where the run brings a trainer of its own: what can be told of the model without knowing how it is
    trained, and what nobody has checked."""
    started = time.monotonic()
    run, paths = read_run_config(environ), read_paths(environ)
    _, misfits = served_context(paths.model, run.spec)
    findings = check_model_folder(paths.model, run.spec.model.source, trained_here=False) + misfits
    unchecked = [field for field, is_set in _fields_of_a_command(run.spec) if is_set]
    message = "is another trainer than gymtrain's. It is started for the first time when the run trains"
    if unchecked:
        message += f", and only it knows what it makes of {', '.join(unchecked)}: preflight checks none of these"
    warning = Finding(where="spec.trainer.command", message=message)
    return TrainerPreflight(findings=findings, warnings=[warning], seconds=round(time.monotonic() - started, 3))


def _fields_of_a_command(spec: GymTrainingRunSpec) -> list[tuple[str, bool]]:
    """Fields that another trainer reads by itself, and whether the run sets them."""
    return [
        ("spec.trainer.config", bool(spec.trainer.config)),
        ("spec.model.lora", spec.model.lora is not None),
        ("spec.evaluation", spec.evaluation is not None),
        ("spec.resumeFrom", spec.resume_from is not None),
    ]


def _check_push(environ: Mapping[str, str]) -> tuple[list[Finding], list[Finding]]:
    """Findings and warnings about where the final model is uploaded to."""
    found = run_push(CHECK, seconds=_PUSH_CHECK_SECONDS, environ=environ)
    if found.done:
        return [], []
    if found.refused:
        return [Finding(where="spec.trainer.push", message=found.said)], []
    return [], [Finding(where="spec.trainer.push", message=f"can't be checked from here: {found.said}")]


def main() -> int:
    """Prints the verdict; 0 whenever it could be made."""
    trainer = read_run_config(os.environ).spec.trainer
    if trainer.command is not None:
        verdict = preflight_of_command()
    else:
        framework = load_framework(trainer.framework)
        gc.disable()  # a framework's libraries make millions of objects while they load, and none of them goes
        verdict = preflight(framework)
    print(PREFLIGHT_MARK + verdict.model_dump_json(), flush=True)
    return 0
