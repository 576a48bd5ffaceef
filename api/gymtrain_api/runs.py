"""What is stored of a run: the resource GymTrainingRun, and `run.json`.

Another release may have written it: the API server fills the defaults of its newest CRD into every run that it
hands out, and pods outlive the operator that made them. So fields that this release doesn't know are ignored, at
every depth. Who writes a spec is told of them by the API server, and by the types themselves.
"""

from typing import Any

from pydantic import ValidationError

from gymtrain_api.errors import ApiError
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.templates import misshapen
from gymtrain_api.wiring import RunConfig


class InvalidRunError(ApiError):
    """The spec doesn't fit the types; the message lists each field and what it should be."""


def parse_spec(spec: dict[str, Any]) -> GymTrainingRunSpec:
    """The typed spec of a run.

    Raises:
        InvalidRunError: a field is missing or out of range, or a template has another shape than a pod's. The CRD
            refuses the first earlier; what is left are objects stored before the CRD was tightened, or by a later
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
    """The typed status of a run; empty where there is none yet."""
    return GymTrainingRunStatus.model_validate(status or {})


def parse_run_config(text: str | bytes) -> RunConfig:
    """The run as `run.json` has it.

    Raises:
        ValidationError: it is no run.json, or one whose fields this release reads otherwise.
    """
    return RunConfig.model_validate_json(text, extra="ignore")
