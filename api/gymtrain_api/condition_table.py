"""The table of conditions: what each says where no step of the plan says anything else, and what each reason means.

A new condition touches the enums beside this table, the table, the step of the plan that decides it, and its test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gymtrain_api.conditions import ConditionType, Reason

type ConditionStatus = Literal["True", "False", "Unknown"]
type EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True)
class Words:
    """What a condition says."""

    status: ConditionStatus
    reason: Reason
    message: str = ""


@dataclass(frozen=True)
class ConditionRow:
    """One type of condition.

    Attributes:
        meaning: for the reference page.
        waits: said before its step has had its turn; None: the condition isn't there yet.
        suspended: said while the run is suspended; None: as while it waits.
        ended: said when the run has ended; None: what was said last.
        block: the block of the spec without which a run never has this condition.
    """

    meaning: str
    waits: Words | None = None
    suspended: Words | None = None
    ended: Words | None = None
    block: str | None = None


@dataclass(frozen=True)
class ReasonRow:
    """One reason.

    Attributes:
        event: what is posted when it is new; None where a run goes that way in any case, which is no news.
        meaning: for the reference page.
        state: the run's state while Progressing has this reason.
        mendable: a run that failed so before anything ran starts afresh when its spec changes.
    """

    event: EventType | None
    meaning: str
    state: Literal["Starting", "Training", "Retrying"] = "Starting"
    mendable: bool = False


_PREFLIGHT_FIRST = Words("False", Reason.WAITING_FOR_PREFLIGHT)
_GOES_ON = Words("False", Reason.RUNNING)
_STOPPED = Words("False", Reason.SUSPENDED, "the run is suspended")
_OVER = Words("False", Reason.FINISHED, "the run has ended: its servers are removed")

CONDITIONS: Mapping[ConditionType, ConditionRow] = {
    ConditionType.PREFLIGHT_PASSED: ConditionRow(
        "The Gym config, the datasets, vLLM's arguments, the trainer's settings and the model were checked in a CPU "
        "pod and are good. False names what to fix. No other pod exists before it is True.",
        waits=Words("Unknown", Reason.PREFLIGHT_RUNNING),
    ),
    ConditionType.GYM_READY: ConditionRow(
        "Every Gym server has a ready pod for each replica.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.INFERENCE_READY: ConditionRow(
        "The vLLM servers answer.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.GATEWAY_READY: ConditionRow(
        "Every gateway pod answers and knows a vLLM pod that holds the run's weights.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.SANDBOXES_READY: ConditionRow(
        "The sandbox broker answers; the message says what sandboxes are made of, and why. "
        "Only on runs with spec.sandboxes.",
        suspended=_STOPPED,
        ended=_OVER,
        block="sandboxes",
    ),
    ConditionType.WEIGHT_SYNC_READY: ConditionRow(
        "A weight transport was chosen that every vLLM server proved to offer.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
    ),
    ConditionType.PROGRESSING: ConditionRow(
        "The run goes forward. The message says what it does or waits for.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.HEALTHY: ConditionRow(
        "What the trainer measures of its samples and its pace is as it should be. False names the alarm; the run "
        "goes on.",
        waits=Words("Unknown", Reason.WAITING_FOR_ROLLOUTS, "nothing is measured before a first step"),
    ),
    ConditionType.SUSPENDED: ConditionRow(
        "spec.suspend is true and the pods are gone.",
        suspended=Words("True", Reason.SUSPENDED, "spec.suspend is true: the pods of the run are stopped"),
    ),
    ConditionType.COMPLETE: ConditionRow("Training reached its last step. Final.", waits=_GOES_ON),
    ConditionType.FAILED: ConditionRow(
        "The run gave up. The message says which part failed and quotes its last lines. Final.",
        waits=_GOES_ON,
    ),
}

REASONS: Mapping[Reason, ReasonRow] = {
    # PreflightPassed
    Reason.PREFLIGHT_RUNNING: ReasonRow("Normal", "The checks are running."),
    Reason.PREFLIGHT_PASSED: ReasonRow(
        "Normal", "All checks passed. The message lists warnings, of what the run may cost its user."
    ),
    Reason.PREFLIGHT_WARNED: ReasonRow("Warning", "Of an event alone: preflight passed, and warns."),
    Reason.PREFLIGHT_FAILED: ReasonRow(
        "Warning", "A check found a mistake; the message names file, line or key.", mendable=True
    ),
    Reason.PREFLIGHT_ERROR: ReasonRow(
        "Warning",
        "The check itself broke: its image can't be pulled, it crashed, or ran past its deadline.",
        mendable=True,
    ),
    Reason.INVALID_SPEC: ReasonRow(
        "Warning",
        "A template makes no valid pod: the message names the field, or quotes the API server. A run that has "
        "trained isn't ended by that but waits, see PodsNotReady. Or the spec doesn't fit this operator's types: "
        "it was stored before the CRD was tightened, or by a later release. A spec that can't be read once "
        "preflight has passed ends nothing: the run's pods are left as they are, and go on.",
        mendable=True,
    ),
    # GymReady, InferenceReady
    Reason.WAITING_FOR_PREFLIGHT: ReasonRow(None, "Preflight comes first."),
    Reason.PODS_STARTING: ReasonRow(None, "Pods are being scheduled, pulled or started."),
    Reason.ALL_READY: ReasonRow("Normal", "Every wanted pod is ready."),
    Reason.PODS_NOT_READY: ReasonRow(
        "Warning",
        "Pods that were ready no longer are. On Progressing: the API server doesn't take an object now (a quota, "
        "an admission policy, of a later attempt whatever it is); the message quotes it, and it is tried again "
        "after 10 to 60 seconds.",
    ),
    # WeightSyncReady
    Reason.WAITING_FOR_INFERENCE: ReasonRow(None, "The vLLM servers have to answer first."),
    Reason.TRANSPORT_CHOSEN: ReasonRow("Normal", "The message says which transport and why."),
    Reason.TRANSPORT_UNAVAILABLE: ReasonRow(
        "Warning", "No transport works with these servers; the message names what is missing."
    ),
    # Progressing
    Reason.WAITING_FOR_SERVERS: ReasonRow(None, "The trainer waits for the Gym and vLLM servers."),
    Reason.TRAINER_STARTING: ReasonRow(None, "The trainer's pods are starting."),
    Reason.WAITING_FOR_ROLLOUTS: ReasonRow(None, "The trainer waits for rollouts.", state="Training"),
    Reason.TRAINING: ReasonRow("Normal", "Optimizer steps are being made.", state="Training"),
    Reason.API_SERVER_ERROR: ReasonRow(
        "Warning",
        "For some seconds the API server has answered with errors (5xx, 429, 409, no right) that keep the operator "
        "from going on with this run; the message quotes the last and says since when. It is asked again; pods "
        "that run go on.",
    ),
    Reason.ROLLOUTS_FAILING: ReasonRow(
        "Warning", "Rollouts fail; the run waits until spec.rollout.stallTimeoutSeconds.", state="Training"
    ),
    Reason.RETRYING: ReasonRow(
        "Warning",
        "An attempt failed, or a node of it is lost, and the next one starts from the last checkpoint. The message "
        "says when, or what to do about the node.",
        state="Retrying",
    ),
    Reason.WAITING_FOR_CAPACITY: ReasonRow(
        "Warning",
        "The run has trained before, and no node has room for a pod of it now, or a quota or a queue holds it "
        "back. It waits; the message quotes the scheduler.",
    ),
    Reason.FINISHED: ReasonRow(None, "The run has ended; see Complete and Failed."),
    # Events alone
    Reason.CHECKPOINTS_SET_ASIDE: ReasonRow(
        "Warning",
        "An event alone: the checkpoint folder held an earlier run's, which are below previous-N now; the message "
        "names the folder, and the spec.resumeFrom that goes on from them.",
    ),
    Reason.RESUMED_FROM_CHECKPOINT: ReasonRow(
        "Normal", "An event alone: where spec.resumeFrom made the run go on, in its steps and in the data."
    ),
    Reason.SAMPLING_REPLACED: ReasonRow(
        "Normal", "An event alone: rows or agents ask for a sampling of their own, and the run's was used."
    ),
    # Healthy: what the trainer measures of its own samples and pace
    Reason.NO_ALARM: ReasonRow("Normal", "No alarm stands."),
    Reason.KL_HIGH: ReasonRow(
        "Warning", "The KL divergence between trainer and vLLM is far above what stale weights explain."
    ),
    Reason.RATIO_OFF: ReasonRow("Warning", "On fresh samples the probability ratio of trainer and vLLM is not 1."),
    Reason.PARITY_OFF: ReasonRow("Warning", "Recomputed log-probabilities drift towards the parity threshold."),
    Reason.STALLED: ReasonRow("Warning", "No step in many times the usual time; the message says where time goes."),
    Reason.CHECKPOINT_FAILED: ReasonRow(
        "Warning", "A checkpoint could not be written; training goes on, and the next one is tried."
    ),
    Reason.ENVIRONMENT_FAILING: ReasonRow(
        "Warning", "Every rollout group of an agent fails; the message names it and its error. The others train on."
    ),
    Reason.NO_LEDGER_ENTRY: ReasonRow(
        "Warning",
        "Rows are given up, as no gateway pod knows which weights sampled their model calls; the message says what "
        "to set.",
    ),
    # Suspended
    Reason.SUSPENDED: ReasonRow("Normal", "spec.suspend is true."),
    Reason.RESUMED: ReasonRow("Normal", "spec.suspend became false again."),
    Reason.NOT_SUSPENDED: ReasonRow(None, "spec.suspend is false."),
    # Complete, Failed
    Reason.TRAINING_COMPLETED: ReasonRow("Normal", "Training reached its last step."),
    Reason.RUNNING: ReasonRow(None, "The run hasn't ended."),
    Reason.BACKOFF_LIMIT_EXCEEDED: ReasonRow("Warning", "spec.backoffLimit attempts after the first have failed too."),
    Reason.TRAINER_REFUSED: ReasonRow(
        "Warning", "The trainer said that trying again can't help; the message says why."
    ),
    Reason.DEADLINE_EXCEEDED: ReasonRow("Warning", "spec.activeDeadlineSeconds has passed."),
    Reason.STARTUP_DEADLINE_EXCEEDED: ReasonRow(
        "Warning", "The servers weren't ready within spec.startupDeadlineSeconds."
    ),
}

_OF_ANOTHER_RELEASE = ReasonRow("Normal", "")


def reason_row(reason: str) -> ReasonRow:
    """The row of a reason that a status has: one of another release is news, and more isn't known of it."""
    return REASONS[Reason(reason)] if reason in Reason else _OF_ANOTHER_RELEASE
