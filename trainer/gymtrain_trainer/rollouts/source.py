"""What a source of rollouts is, and the settings that all of them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from gymtrain_api.rows import without_nulls
from gymtrain_api.sampling import NEUTRAL
from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.rollouts.answer import Answer

WHOLE = NEUTRAL["top_p"]


class RolloutSource(Protocol):
    """Makes one rollout of a task; lives in one event loop."""

    async def __aenter__(self) -> Self:
        """Opens its connections."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes them."""
        ...

    async def run(self, task: Task) -> Answer:
        """One rollout.

        Raises:
            RolloutError: it failed for good.
            UnscoredError: so it did, but its tokens are known.
            RowRefusedError: no rollout of the row can succeed.
        """
        ...


@dataclass(frozen=True)
class Sampling:
    """How the policy samples; goes into each request."""

    temperature: float
    max_output_tokens: int


@dataclass(frozen=True)
class RolloutLimits:
    """`spec.rollout`, for one rollout."""

    max_concurrent: int  # that the process' open files allow (open_files)
    timeout_seconds: float  # of one POST /run, or of one generation in mode Verify
    max_attempts: int  # where a failure is retried
    verify_timeout_seconds: float = 300.0  # of one POST /verify, or /seed_session, in mode Verify
    on_failure: OnFailure = field(default_factory=OnFailure)


def replaced_by_run(row: Mapping[str, Any], sampling: Sampling) -> list[str]:
    """Sampling settings that the row has of its own, and in whose place the run's are sent."""
    params = row.get("responses_create_params") or {}
    wanted = {"temperature": sampling.temperature, "top_p": WHOLE}
    return [name for name, value in wanted.items() if params.get(name) not in (None, value)]


def request_body(row: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
    """The row with the run's sampling settings in its `responses_create_params`, and without the nulls in those.

    The verifier's own fields, beside them, stay as they are.
    """
    params = without_nulls(row.get("responses_create_params") or {})
    params["temperature"] = sampling.temperature
    params["top_p"] = WHOLE  # named, for a model server may have another default; the gateway sees to the rest
    params["max_output_tokens"] = sampling.max_output_tokens
    return dict(row) | {"responses_create_params": params}
