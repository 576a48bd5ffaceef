"""Reading a stored run: the resource GymTrainingRun, and `run.json`.

Another release may have written it. The API server adds the defaults of its newest CRD to every run that it returns,
and pods outlive the operator that made them. So fields that this release doesn't know are ignored at every depth. The
API server and the types themselves report them to the author of a spec.
"""

from typing import Any

from pydantic import ValidationError

from gymtrain_api.errors import ApiError
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.templates import misshapen
from gymtrain_api.wiring import RunConfig


class InvalidRunError(ApiError):
    """The spec doesn't fit the types. The message lists each wrong field and what it should be."""


def parse_spec(spec: dict[str, Any]) -> GymTrainingRunSpec:
    """The typed spec of a run.

    Raises:
        InvalidRunError: a field is missing or out of range, or a template doesn't have the shape of a pod's. The CRD
            refuses the first earlier, except in objects that were stored before the CRD became stricter, or by a later
            release that allows more.
    """
    try:
        typed = GymTrainingRunSpec.model_validate(spec, extra="ignore")
    except ValidationError as error:
        lines = ("spec." + ".".join(map(str, e["loc"])) + ": " + e["msg"] for e in error.errors())
        raise InvalidRunError("; ".join(lines)) from error
    if mistakes := misshapen(typed):
        raise InvalidRunError("; ".join(mistakes))
    return typed


def parse_status(status: dict[str, Any] | None) -> GymTrainingRunStatus:
    """The typed status of a run; empty if there is none yet."""
    return GymTrainingRunStatus.model_validate(status or {})


def parse_run_config(text: str | bytes) -> RunConfig:
    """The run in `run.json`.

    Raises:
        ValidationError: it isn't a run.json, or its fields don't fit this release.
    """
    return RunConfig.model_validate_json(text, extra="ignore")
