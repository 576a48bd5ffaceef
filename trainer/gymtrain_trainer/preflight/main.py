"""`python -m gymtrain_trainer.preflight`: checks the trainer's settings and the model before anything expensive starts.

Prints one `TrainerPreflight` on stdout.
"""

import gc
import os
import time
from collections.abc import Mapping

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
    framework = load_framework()
    gc.disable()  # a framework's libraries make millions of objects while they load, and none of them goes
    verdict = preflight(framework)
    print(PREFLIGHT_MARK + verdict.model_dump_json(), flush=True)
    return 0
