"""The weight transport, as the status shows it."""

from dataclasses import dataclass

from gymtrain_api import transports
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus, WeightSyncStatus
from gymtrain_api.weight_version import WeightVersion
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.reconcile.changes import Failure
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition, true_condition
from gymtrain_operator.reconcile.observation import Observation

_KIND = ConditionType.WEIGHT_SYNC_READY
_MAX_MISSING = 400  # characters of one text


@dataclass(frozen=True)
class WeightSyncStep:
    """The transport.

    Attributes:
        status: None until one is chosen.
        failure: none works with these servers.
    """

    status: WeightSyncStatus | None
    condition: StatedCondition
    failure: Failure | None = None


def step(seen: Observation, run: RunContext, before: GymTrainingRunStatus) -> WeightSyncStep:
    """Returns the transport that the trainer uses, or the one that the servers' offers allow."""
    known = _as_used(before.weight_sync, seen.progress)
    if seen.offers and (known is None or known.missing is None):
        choice = _choose(seen, run)
        if choice.transport is None and known is None:
            condition = false_condition(_KIND, Reason.TRANSPORT_UNAVAILABLE, choice.reason)
            return WeightSyncStep(None, condition, Failure(Reason.TRANSPORT_UNAVAILABLE, choice.reason))
        known = _with_choice(known, choice)
    if known is None:
        waiting = "waiting for vLLM to report what it supports"
        if seen.oversized:
            waiting += f". {seen.oversized}: is this vLLM's own image and command?"
        return WeightSyncStep(None, false_condition(_KIND, Reason.WAITING_FOR_INFERENCE, waiting))
    text = f"{known.transport}: {known.reason.removeprefix(f'{known.transport}: ')}"
    if known.missing:
        text += f". Not chosen: {' | '.join(known.missing)}"
    return WeightSyncStep(known, true_condition(_KIND, Reason.TRANSPORT_CHOSEN, text))


def _with_choice(known: WeightSyncStatus | None, choice: transports.TransportChoice) -> WeightSyncStatus:
    missing = [text[:_MAX_MISSING] for text in choice.missing]
    if known is None:
        return WeightSyncStatus(transport=str(choice.transport), reason=choice.reason, missing=missing)
    return known.model_copy(update={"missing": missing if known.transport == choice.transport else []})


def _choose(seen: Observation, run: RunContext) -> transports.TransportChoice:
    spec = run.spec
    return transports.choose(
        spec.weight_sync.transport,
        seen.offers or (),
        lora=spec.model.lora if spec.model.lora is not None else False,
        max_staleness=spec.rollout.max_staleness,
        shared_volume=spec.trainer.checkpoint is not None,
        trainer_gpus=spec.trainer.gpus,
        inference_gpus=spec.inference.gpus,
    )


def _as_used(known: WeightSyncStatus | None, report: TrainerProgress | None) -> WeightSyncStatus | None:
    """Returns the status with the transport that the trainer uses."""
    if report is None or report.transport is None or (known and known.transport == report.transport):
        return known
    return WeightSyncStatus(
        transport=report.transport, reason=report.transport_reason, version=known.version if known else None
    )


def with_version(sync: WeightSyncStatus | None, report: TrainerProgress | None) -> WeightSyncStatus | None:
    """Returns the weight sync with the version that the trainer says the servers hold."""
    if sync is None or report is None or report.weight_version is None:
        return sync
    return sync.model_copy(update={"version": report.weight_version})


def has_weights_of(sync: WeightSyncStatus | None, run: str, attempt: int) -> bool:
    """Whether the servers got weights in this attempt: only possible once they were up."""
    version = WeightVersion.parse(sync.version) if sync else None
    return version is not None and version.is_of(run, attempt)
