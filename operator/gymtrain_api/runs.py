"""The resource itself: GymTrainingRun."""

from typing import Any

from pydantic import ValidationError

from gymtrain_api.errors import ApiError
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus


class InvalidRunError(ApiError):
    """The spec doesn't fit the types; the message lists each field and what it should be."""


def parse_spec(spec: dict[str, Any]) -> GymTrainingRunSpec:
    """The typed spec of a run.

    Raises:
        InvalidRunError: a field is unknown, missing or out of range. The CRD refuses most of this
            earlier; what is left are objects stored before the CRD was tightened.
    """
    try:
        return GymTrainingRunSpec.model_validate(spec)
    except ValidationError as error:
        lines = ("spec." + ".".join(map(str, e["loc"])) + ": " + e["msg"] for e in error.errors())
        raise InvalidRunError("; ".join(lines)) from error


def parse_status(status: dict[str, Any] | None) -> GymTrainingRunStatus:
    """The typed status of a run; empty where there is none yet."""
    return GymTrainingRunStatus.model_validate(status or {})
