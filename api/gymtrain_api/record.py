"""The record of a run, in the annotation `gymtrain.dev/record` on the run itself.

A status is a subresource. A backup tool may restore the object without it, and a manifest that was exported and applied
again has none. Both give the object a new UID, so it no longer owns its objects. The annotation is kept. It names the
attempts, so that none is counted twice and no weight version is reused. It also says whether the run has ended, so that
nothing is trained again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gymtrain_api.labels import RECORD
from gymtrain_api.status import MAX_DISRUPTED_ATTEMPTS

MAX_MESSAGE = 600  # characters

_MAX_ATTEMPT = 1_000_000


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Ended(_Part):
    """How a run ended."""

    condition: Literal["Complete", "Failed"]
    reason: str
    message: str = ""
    time: str  # RFC 3339

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        datetime.fromisoformat(text)
        return text


class Record(_Part):
    """What must be known about a run if its status is lost."""

    run: str  # a manifest copied under another name is another run
    uid: str  # of the run that began it; its checkpoints have this uid
    attempt: int | None = Field(None, ge=1, le=_MAX_ATTEMPT)
    disrupted: tuple[int, ...] = Field((), max_length=MAX_DISRUPTED_ATTEMPTS)
    trained: bool = False
    ended: Ended | None = None


def read_record(annotations: Mapping[str, str], run: str) -> Record | None:
    """The record of this run, or None if it is missing, can't be read, or belongs to another run."""
    try:
        record = Record.model_validate_json(annotations[RECORD])
    except (KeyError, ValidationError):
        return None
    return record if record.run == run else None
