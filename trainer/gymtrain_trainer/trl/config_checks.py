"""Preflight's checks of `spec.trainer.config`: pure ones with a hint, then TRL's own AsyncGRPOConfig."""

import contextlib
import dataclasses
import difflib
import json
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from gymtrain_api.sampling import TEMPERATURES
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.framework import ContextLength
from gymtrain_trainer.trl import settings
from gymtrain_trainer.trl.refusals import one_line, place_of

_WHERE = "spec.trainer.config"
_EVALUATION_MARGIN = 300  # seconds: rank 0 waits a little longer than an evaluation may take
# What transformers takes and documents, where its annotations say less: 5.19 has `str | None`, for its command line.
_WIDER: Mapping[str, Any] = {"fsdp": bool | str | None}


def check_lengths(spec: GymTrainingRunSpec, context: ContextLength | None) -> list[Finding]:
    """Answers and packed rows against what vLLM serves, which refuses an answer that is too long with every rollout."""
    if context is None:
        return []
    return [*_answers(spec, context), *_budget(spec, context)]


def _answers(spec: GymTrainingRunSpec, context: ContextLength) -> list[Finding]:
    answer = settings.max_completion_length(spec)
    if answer < context.tokens:
        return []
    default = "" if "max_completion_length" in spec.trainer.config else " (TRL's default)"
    message = (
        f"is {answer} tokens{default}, but prompt and answer together have {context.tokens} ({context.source}), so "
        "vLLM refuses every request: lower it until the prompts fit too, or raise --max-model-len in "
        "spec.inference.args"
    )
    return [Finding(where=f"{_WHERE}.max_completion_length", message=message)]


def _budget(spec: GymTrainingRunSpec, context: ContextLength) -> list[Finding]:
    budget = settings.Batch.of(spec).token_budget
    if not 0 < budget < context.tokens:
        return []
    message = (
        f"is {budget} tokens, and prompt and answer may have {context.tokens} ({context.source}): "
        "a group with a longer sample is dropped, so long answers would never be trained. Raise it to that, or set "
        f"--max-model-len={budget} in spec.inference.args"
    )
    return [Finding(where=f"{_WHERE}.token_budget", message=message)]


def check_keys(config: Mapping[str, Any], valid: set[str]) -> list[Finding]:
    """Unknown keys with the nearest valid name, and keys that other fields of the run set."""
    findings = []
    usable = sorted((valid - set(settings.OWNED_KEYS)) | set(settings.LOSS_KEYS))
    for key, value in config.items():
        if key in settings.OWNED_KEYS:
            message = f"can't be set here: {settings.OWNED_KEYS[key]}"
        elif key in settings.LOSS_KEYS:
            if value in settings.LOSS_KEYS[key]:
                continue
            message = f"must be one of {', '.join(settings.LOSS_KEYS[key])}"
        elif key not in valid:
            near = difflib.get_close_matches(key, usable, n=1, cutoff=0.6)
            message = "TRL's AsyncGRPOConfig has no such setting" + (f"; did you mean {near[0]}?" if near else "")
        elif key == "temperature" and not _can_be_sampled(value):
            message = f"must be from {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}, the range that vLLM supports"
        elif key in settings.NEUTRAL_SAMPLING and value not in settings.NEUTRAL_SAMPLING[key]:
            message = (
                f"set {settings.NEUTRAL_SAMPLING[key][-1]:g} or leave it out: the trainer scores the whole vocabulary, "
                f"and tokens of a distribution that {key} bends have other log-probabilities than it computes "
                "(examples for TRL alone, such as top_p 0.999, don't require it)"
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
                message="set it: with token_budget the groups of a step vary, so num_train_epochs can't be counted",
            )
        )
    if batch.token_budget and not spec.rollout.max_staleness:
        findings.append(
            Finding(
                where="spec.rollout.maxStaleness",
                message="can't be 0 with trainer.config.token_budget: on-policy, a step's groups are begun once its "
                "weights are there, and how many a step of tokens will use isn't known then. Set it to 1, or leave "
                "token_budget out",
            )
        )
    return findings


def check_timeout(spec: GymTrainingRunSpec) -> list[Finding]:
    """A user's own ddp_timeout, which an evaluation may outlast."""
    given, evaluation = spec.trainer.config.get("ddp_timeout"), spec.evaluates
    if evaluation is None or not isinstance(given, int | float) or settings.Batch.of(spec).processes == 1:
        return []
    if given > evaluation.timeout_seconds + _EVALUATION_MARGIN:
        return []
    message = (
        f"is {given:g} s, and the other processes wait in a collective while an evaluation ends, for "
        f"{evaluation.timeout_seconds} s (spec.evaluation.timeoutSeconds): leave it out, which makes it long enough"
    )
    return [Finding(where=f"{_WHERE}.ddp_timeout", message=message)]


def check_sharding(config: Mapping[str, Any]) -> list[Finding]:
    """FSDP's first version, whose parameters TRL would send to vLLM as they are: shares, under names of FSDP's own."""
    sharding = config.get("fsdp_config")
    if not isinstance(sharding, Mapping) or str(sharding.get("version", 2)) != "1":
        return []
    message = "version 1 can't be synced to vLLM: TRL gathers only what version 2 shards; leave version out"
    return [Finding(where=f"{_WHERE}.fsdp_config", message=message)]


def check_types(config: Mapping[str, Any], hints: Mapping[str, Any]) -> list[Finding]:
    """Values whose type isn't the field's. A whole number counts as a number; a string in quotes does not."""
    findings = []
    for key in sorted(config.keys() & hints.keys()):
        expected = _WIDER.get(key, hints[key])
        try:
            adapter = TypeAdapter(expected, config=ConfigDict(arbitrary_types_allowed=True))
        except (PydanticUserError, TypeError):  # a type of a library's own, such as FSDP's: TRL itself judges it
            continue
        try:
            adapter.validate_json(json.dumps(config[key]), strict=True)
        except ValidationError:
            named = str(getattr(expected, "__name__", expected)).replace("typing.", "")
            findings.append(
                Finding(
                    where=f"{_WHERE}.{key}",
                    message=f"expected {named}, got {json.dumps(config[key])} ({type(config[key]).__name__})",
                )
            )
    return findings


def check_config(spec: GymTrainingRunSpec) -> list[Finding]:
    """All checks of `trainer.config`, the last by making TRL's config of it. Imports torch and transformers."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    fields = {field.name for field in dataclasses.fields(AsyncGRPOConfig) if field.init}
    config = spec.trainer.config
    findings = check_keys(config, fields) + check_batch(spec) + check_timeout(spec) + check_sharding(config)
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
