"""Preflight's warnings: what works, and costs its user something that he may not have thought of.

Those that the spec alone tells come from here, the others from the preflight pod's containers. All of them stand in the
message of PreflightPassed, one a line.
"""

from collections.abc import Iterable

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding

_MARK = "\nwarning: "


def with_warnings(message: str, warnings: Iterable[Finding]) -> str:
    """The condition's message with the warnings below it."""
    return message + "".join(f"{_MARK}{warning.where}: {warning.message}" for warning in warnings)


def split_message(message: str) -> tuple[str, str]:
    """What `with_warnings` put together: the message, and the warnings without their marks, one a line."""
    said, *warnings = message.split(_MARK)
    return said, "\n".join(warnings)


def warnings_of(spec: GymTrainingRunSpec) -> list[Finding]:
    """The warnings, in the order of the spec's fields. They take part in no hash: the fields may change in a run."""
    return [*_kept_model(spec), *_deleted_model(spec)]


def _kept_model(spec: GymTrainingRunSpec) -> list[Finding]:
    if spec.trainer.checkpoint is not None:
        return []
    message = (
        "is not set, so nothing keeps the trained model: the final weights are gone with the run's pods, and another "
        "attempt starts from step 0. Set size (a volume is made) or claimName (a volume of yours)"
    )
    return [Finding(where="spec.trainer.checkpoint", message=message)]


def _deleted_model(spec: GymTrainingRunSpec) -> list[Finding]:
    checkpoint, ttl = spec.trainer.checkpoint, spec.ttl_seconds_after_finished
    if ttl is None or checkpoint is None or checkpoint.size is None or checkpoint.retain == "Keep":
        return []
    message = (
        f"deletes the run {ttl} s after its end, and with it the volume that spec.trainer.checkpoint.size makes: the "
        "only copy of the trained model. Set spec.trainer.checkpoint.retain to Keep, or leave this out"
    )
    return [Finding(where="spec.ttlSecondsAfterFinished", message=message)]
