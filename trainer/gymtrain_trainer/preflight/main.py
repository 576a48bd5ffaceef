"""`python -m gymtrain_trainer.preflight`: checks the trainer's settings and the model before anything expensive starts.

Prints one `TrainerPreflight` on stdout. Also the pure checks behind it.
"""

import contextlib
import dataclasses
import difflib
import gc
import json
import os
import tempfile
import time
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from gymtrain_api.sampling import TEMPERATURES
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import PREFLIGHT_MARK, Finding, TrainerPreflight
from gymtrain_trainer.checkpoints.resume import check_resume
from gymtrain_trainer.context import read_paths, read_run_config
from gymtrain_trainer.preflight.context_length import check_lengths
from gymtrain_trainer.preflight.model_folder import check_model_folder
from gymtrain_trainer.trl import settings
from gymtrain_trainer.trl.config import leave_out_vllm
from gymtrain_trainer.trl.lora_checks import check_lora
from gymtrain_trainer.trl.refusals import one_line, place_of

_WHERE = "spec.trainer.config"


def check_keys(config: Mapping[str, Any], valid: set[str]) -> list[Finding]:
    """Unknown keys with the nearest valid name, and keys that other fields of the run set."""
    findings = []
    usable = sorted(valid - set(settings.OWNED_KEYS))
    for key, value in config.items():
        if key in settings.OWNED_KEYS:
            message = f"can't be set here: {settings.OWNED_KEYS[key]}"
        elif key not in valid:
            near = difflib.get_close_matches(key, usable, n=1, cutoff=0.6)
            message = "TRL's AsyncGRPOConfig has no such setting" + (f"; did you mean {near[0]}?" if near else "")
        elif key == "temperature" and not _can_be_sampled(value):
            message = f"must be from {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}, which is what vLLM samples with"
        elif key in settings.NEUTRAL_SAMPLING and value not in settings.NEUTRAL_SAMPLING[key]:
            message = (
                f"set {settings.NEUTRAL_SAMPLING[key][-1]:g} or leave it out: the trainer scores the whole vocabulary, "
                f"and tokens of a distribution that {key} bends have other log-probabilities than it computes "
                "(examples for TRL alone, such as top_p 0.999, are no reason to set it)"
            )
        else:
            continue
        findings.append(Finding(where=f"{_WHERE}.{key}", message=message))
    return findings


def _can_be_sampled(temperature: Any) -> bool:
    """A value of another type counts as one that can: `check_types` reports it."""
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return not number or TEMPERATURES[0] <= temperature <= TEMPERATURES[1]


def check_batch(spec: GymTrainingRunSpec) -> list[Finding]:
    """Whole groups in each step, at least two rollouts a group, and an end of the training."""
    findings = []
    batch = settings.Batch.of(spec)
    config = spec.trainer.config
    if batch.num_generations < 2:
        findings.append(
            Finding(
                where=f"{_WHERE}.num_generations",
                message="must be at least 2: GRPO compares the rollouts of a group with each other",
            )
        )
    elif batch.token_budget == 0 and batch.samples_per_step % batch.num_generations:
        lower = batch.samples_per_step // batch.num_generations * batch.num_generations
        findings.append(
            Finding(
                where=f"{_WHERE}.per_device_train_batch_size",
                message=f"the batch of one step is {batch.per_device} (per_device_train_batch_size) x "
                f"{batch.processes} (processes) x {batch.accumulation} (gradient_accumulation_steps) = "
                f"{batch.samples_per_step}, which num_generations {batch.num_generations} does not divide; "
                f"{f'{lower} or ' if lower else ''}{lower + batch.num_generations} would do",
            )
        )
    if not (isinstance(config.get("max_steps"), int) and config["max_steps"] > 0) and not config.get(
        "num_train_epochs"
    ):
        findings.append(
            Finding(where=f"{_WHERE}.max_steps", message="set max_steps or num_train_epochs: when does training end?")
        )
    if batch.token_budget and not config.get("max_steps"):
        findings.append(
            Finding(
                where=f"{_WHERE}.max_steps",
                message="set it: with token_budget the samples of a step vary, so num_train_epochs can't be counted",
            )
        )
    return findings


def check_types(config: Mapping[str, Any], hints: Mapping[str, Any]) -> list[Finding]:
    """Values whose type isn't the field's. A whole number counts as a number; a string in quotes does not."""
    findings = []
    for key in sorted(config.keys() & hints.keys()):
        try:
            adapter = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
        except (PydanticUserError, TypeError):  # a type of a library's own, such as FSDP's: TRL itself judges it
            continue
        try:
            adapter.validate_json(json.dumps(config[key]), strict=True)
        except ValidationError:
            expected = str(getattr(hints[key], "__name__", hints[key])).replace("typing.", "")
            findings.append(
                Finding(
                    where=f"{_WHERE}.{key}",
                    message=f"expected {expected}, got {json.dumps(config[key])} ({type(config[key]).__name__})",
                )
            )
    return findings


def check_config(spec: GymTrainingRunSpec) -> list[Finding]:
    """All checks of `trainer.config`, the last by making TRL's config of it. Imports torch and transformers."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    fields = {field.name for field in dataclasses.fields(AsyncGRPOConfig) if field.init}
    config = spec.trainer.config
    findings = check_keys(config, fields) + check_batch(spec)
    with contextlib.suppress(NameError, TypeError):  # annotations that only type checkers can resolve
        findings += check_types(config, typing.get_type_hints(AsyncGRPOConfig))
    if findings:
        return findings
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings.trl_arguments(spec, folder=Path(folder), steps=settings.max_steps(spec, None))
        # Preflight has no GPU; what needs one is left to the trainer.
        arguments |= {"use_cpu": True, "tf32": None, "report_to": []}
        try:
            AsyncGRPOConfig(**arguments)
        except Exception as error:
            return [Finding(where=place_of(error, spec), message=f"TRL refuses it: {one_line(error)}")]
    return findings


def preflight(environ: Mapping[str, str] = os.environ) -> TrainerPreflight:
    """The verdict on the run that run.json describes."""
    started = time.monotonic()
    run, paths = read_run_config(environ), read_paths(environ)
    spec, model = run.spec, paths.model
    findings = check_model_folder(model, spec.model.source) + check_lengths(model, spec)
    findings += check_config(spec) + check_lora(spec)
    findings += check_resume(run, paths.resume, model, settings.max_steps(spec, None))
    warnings: list[Finding] = []
    if not findings:  # what is known to be wrong would only be said again, in a library's words
        from gymtrain_trainer.trl.rehearsal import rehearse

        findings, warnings = rehearse(spec, model)
    return TrainerPreflight(
        findings=findings,
        warnings=warnings,
        max_steps=settings.max_steps(spec, None),
        seconds=round(time.monotonic() - started, 3),
    )


def main() -> int:
    """Prints the verdict; 0 whenever it could be made."""
    leave_out_vllm()
    gc.disable()  # torch and transformers make millions of objects while they load, and none of them goes
    verdict = preflight()
    print(PREFLIGHT_MARK + verdict.model_dump_json(), flush=True)
    return 0
