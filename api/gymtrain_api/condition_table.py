"""The table of conditions: what each says by default, and what each reason means.

A step of the plan can say something else.

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
        meaning: text for the reference page.
        waits: what it says before its step has run; None: the run doesn't have the condition yet.
        suspended: what it says while the run is suspended; None: the same as `waits`.
        ended: what it says when the run has ended; None: what it said last.
        block: block of the spec that the condition needs; a run without it never has the condition.
        queued: whether only runs in a queue of Kueue have the condition.
    """

    meaning: str
    waits: Words | None = None
    suspended: Words | None = None
    ended: Words | None = None
    block: str | None = None
    queued: bool = False


@dataclass(frozen=True)
class ReasonRow:
    """One reason.

    Attributes:
        event: type of the event that a new reason posts; None if every run gets this reason, which is no news.
        meaning: text for the reference page.
        fix: what to do about it, for the page docs/reference/troubleshooting.md; empty where nothing is to be done.
        state: state of the run while Progressing has this reason.
        mendable: whether a run that failed for this reason before anything ran starts again when its spec changes.
    """

    event: EventType | None
    meaning: str
    fix: str = ""
    state: Literal["Queued", "Starting", "Training", "Retrying"] = "Starting"
    mendable: bool = False


_PREFLIGHT_FIRST = Words("False", Reason.WAITING_FOR_PREFLIGHT)
_GOES_ON = Words("False", Reason.RUNNING)
_STOPPED = Words("False", Reason.SUSPENDED, "the run is suspended")
_OVER = Words("False", Reason.FINISHED, "the run has ended, and its servers are removed")

CONDITIONS: Mapping[ConditionType, ConditionRow] = {
    ConditionType.PREFLIGHT_PASSED: ConditionRow(
        "A CPU pod checked the Gym config, the datasets, vLLM's arguments, the trainer's settings and the model, and "
        "found no mistake. If False, the message says what to fix. No other pod exists before it is True.",
        waits=Words("Unknown", Reason.PREFLIGHT_RUNNING),
    ),
    ConditionType.ADMITTED: ConditionRow(
        "Kueue admitted the run: there is quota for all its pods. The message names the ClusterQueue, or says in "
        "Kueue's words what the run waits for. Only runs with the label kueue.x-k8s.io/queue-name have this condition.",
        suspended=_STOPPED,
        ended=Words("False", Reason.FINISHED, "the run has ended, and its quota is free"),
        queued=True,
    ),
    ConditionType.GYM_READY: ConditionRow(
        "All replicas of every Gym server are ready.",
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
        "Every gateway pod answers, and knows a vLLM pod that holds the run's weights.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.SANDBOXES_READY: ConditionRow(
        "The sandbox broker answers. The message names the backend of the sandboxes, and why it was chosen. "
        "Only runs with spec.sandboxes have this condition.",
        suspended=_STOPPED,
        ended=_OVER,
        block="sandboxes",
    ),
    ConditionType.WEIGHT_SYNC_READY: ConditionRow(
        "A weight transport that every vLLM server supports was chosen.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
    ),
    ConditionType.PROGRESSING: ConditionRow(
        "The run makes progress. The message says what it does or waits for.",
        waits=_PREFLIGHT_FIRST,
        suspended=_STOPPED,
        ended=_OVER,
    ),
    ConditionType.HEALTHY: ConditionRow(
        "The trainer measures nothing unusual about its samples and its pace. If False, the reason names the alarm, "
        "and the run continues.",
        waits=Words("Unknown", Reason.WAITING_FOR_ROLLOUTS, "nothing is measured before the first step"),
    ),
    ConditionType.SUSPENDED: ConditionRow(
        "spec.suspend is true, and the pods are gone.",
        suspended=Words("True", Reason.SUSPENDED, "spec.suspend is true, and the pods of the run are stopped"),
    ),
    ConditionType.COMPLETE: ConditionRow("Training reached its last step. Final.", waits=_GOES_ON),
    ConditionType.FAILED: ConditionRow(
        "The run failed. The message says which part failed, and quotes its last lines. Final.",
        waits=_GOES_ON,
    ),
}

REASONS: Mapping[Reason, ReasonRow] = {
    # PreflightPassed
    Reason.PREFLIGHT_RUNNING: ReasonRow("Normal", "The checks are running."),
    Reason.PREFLIGHT_ONLY: ReasonRow(
        "Normal", "Preflight has passed, and the run's annotation gymtrain.dev/preflight-only keeps it from more."
    ),
    Reason.PREFLIGHT_PASSED: ReasonRow(
        "Normal", "All checks passed. The message lists warnings about what the run may cost."
    ),
    Reason.PREFLIGHT_WARNED: ReasonRow(
        "Warning",
        "Event only: preflight passed with warnings.",
        fix="Nothing has to be done. If a warning matters to you, change the spec: what preflight checks can change "
        "until preflight has passed; after that, apply the run under a new name.",
    ),
    Reason.PREFLIGHT_FAILED: ReasonRow(
        "Warning",
        "A check found a mistake. The message names the file, line or key.",
        mendable=True,
        fix="Change what the message names, and apply the run again: preflight runs anew by itself.",
    ),
    Reason.PREFLIGHT_ERROR: ReasonRow(
        "Warning",
        "The check itself failed: its image can't be pulled, it crashed, or it exceeded its deadline.",
        mendable=True,
        fix="The message quotes the pod. An image that can't be pulled: correct its name, or the pull secret of "
        "spec.serviceAccountName. A crash or the deadline: `kubectl logs -l "
        "gymtrain.dev/run=RUN,gymtrain.dev/role=preflight --all-containers`. Then apply the run with any change "
        "to its spec, which starts preflight anew.",
    ),
    Reason.INVALID_SPEC: ReasonRow(
        "Warning",
        "A template doesn't make a valid pod. The message names the field, or quotes the API server. This doesn't end "
        "a run that has trained: it waits, see PodsNotReady. Or the spec doesn't fit this operator's types, because "
        "it was stored before the CRD became stricter, or by a later release. If preflight has passed, such a spec "
        "doesn't end the run: its pods stay as they are and continue.",
        mendable=True,
        fix="Change the field that the message names. After an upgrade or a rollback of the operator: install the "
        "CRD of the same release (`kubectl apply -f crds/`).",
    ),
    # Admitted
    Reason.WAITING_FOR_QUOTA: ReasonRow(
        "Normal",
        "The run waits in a queue of Kueue, and has no pods. The message says why, in Kueue's words. No deadline "
        "counts.",
        state="Queued",
    ),
    Reason.ADMITTED: ReasonRow("Normal", "Kueue reserved quota for the whole run."),
    Reason.EVICTED: ReasonRow(
        "Warning",
        "Kueue took the quota back, for a run of higher priority or because someone stopped the queue or the Workload. "
        "Or the run now needs something other than what was admitted. The trainer writes a checkpoint, all pods stop, "
        "and the run is queued again. It continues from that checkpoint, and this doesn't count against "
        "spec.backoffLimit.",
        state="Queued",
        fix="The message has Kueue's reason. Preempted: nothing, or give the run a higher priority (label "
        "kueue.x-k8s.io/priority-class). Deactivated: set spec.active of Workload gymtrainingrun-RUN to true again. "
        "Without spec.trainer.checkpoint it starts from step 0 again.",
    ),
    # GymReady, InferenceReady
    Reason.WAITING_FOR_PREFLIGHT: ReasonRow(None, "The run waits for preflight."),
    Reason.PODS_STARTING: ReasonRow(None, "Pods are being scheduled, are pulling images, or are starting."),
    Reason.ALL_READY: ReasonRow("Normal", "All pods are ready."),
    Reason.PODS_NOT_READY: ReasonRow(
        "Warning",
        "Pods that were ready are not ready any more. On Progressing: the API server refuses an object for now (a "
        "quota or an admission policy; for a later attempt, any refusal). The message quotes it, and the operator "
        "retries after 10 to 60 seconds.",
        fix="The message names the pod, or quotes the refusal. `kubectl describe pod` says why it isn't ready; the "
        "run continues by itself once it is. For a quota or an admission policy: make room, or have the policy "
        "allow what it denies.",
    ),
    # WeightSyncReady
    Reason.WAITING_FOR_INFERENCE: ReasonRow(None, "The run waits for the vLLM servers to answer."),
    Reason.TRANSPORT_CHOSEN: ReasonRow("Normal", "The message says which transport was chosen, and why."),
    Reason.TRANSPORT_UNAVAILABLE: ReasonRow(
        "Warning",
        "No transport works with these servers. The message names what is missing.",
        fix="Set spec.weightSync.transport to Auto, or give the vLLM servers what the message names: NCCL needs "
        "GPUs on both sides, LoRAFilesystem needs spec.model.lora and a checkpoint volume that all pods mount, "
        "HTTPFull needs this release's image with vLLM 0.25 or later.",
    ),
    # Progressing
    Reason.WAITING_FOR_SERVERS: ReasonRow(None, "The trainer waits for the Gym and vLLM servers."),
    Reason.TRAINER_STARTING: ReasonRow(None, "The trainer's pods are starting."),
    Reason.WAITING_FOR_ROLLOUTS: ReasonRow(None, "The trainer waits for rollouts.", state="Training"),
    Reason.TRAINING: ReasonRow("Normal", "The trainer makes optimizer steps.", state="Training"),
    Reason.API_SERVER_ERROR: ReasonRow(
        "Warning",
        "For some seconds, the API server has answered with errors (5xx, 429, 409, no right), so the operator can't "
        "continue this run. The message quotes the last error and says since when. The operator retries, and running "
        "pods continue.",
        fix="Look at the API server: it is down, overloaded, or has taken rights from the operator (`kubectl auth "
        "can-i --list --as=system:serviceaccount:NAMESPACE:gymtrain-operator`). Nothing is lost meanwhile.",
    ),
    Reason.ROLLOUTS_FAILING: ReasonRow(
        "Warning",
        "Rollouts fail. The attempt fails after spec.rollout.stallTimeoutSeconds.",
        state="Training",
        fix="The message quotes the last error and names its server: look at that server's log. If rollouts are "
        "only slow, raise spec.rollout.timeoutSeconds; if they fail by chance, spec.rollout.maxAttempts; what a "
        "failure counts as is spec.rollout.onFailure.",
    ),
    Reason.RETRYING: ReasonRow(
        "Warning",
        "An attempt failed or lost a node. The next one starts from the last checkpoint. The message says when, or "
        "what to do about the node.",
        state="Retrying",
        fix="Nothing has to be done while attempts are left (spec.backoffLimit). The message has the last lines of "
        "the attempt that failed. If it waits for a pod on a node that is gone, delete that node, or the pod "
        "with `--force`.",
    ),
    Reason.WAITING_FOR_CAPACITY: ReasonRow(
        "Warning",
        "The run has trained before, but now no node has room for one of its pods, or a quota or a queue holds it "
        "back. The run waits. The message quotes the scheduler.",
        fix="Make room on a node, raise the quota, or wait: the run waits without a limit. `kubectl get pods -l "
        "gymtrain.dev/run=RUN` shows which pods wait; node selectors and tolerations are in their block's "
        "template.",
    ),
    Reason.FINISHED: ReasonRow(None, "The run has ended. See Complete and Failed."),
    # Only events
    Reason.CHECKPOINTS_SET_ASIDE: ReasonRow(
        "Warning",
        "Event only: the checkpoint folder held an earlier run's checkpoints, which were moved to previous-N. The "
        "message names the folder, and the spec.resumeFrom that resumes from them.",
        fix="If you meant to go on from them, delete the run, and apply it with the spec.resumeFrom that the "
        "message gives. Otherwise delete the folder when you no longer need it.",
    ),
    Reason.RESUMED_FROM_CHECKPOINT: ReasonRow(
        "Normal", "Event only: the step and the data position at which spec.resumeFrom resumed the run."
    ),
    Reason.SAMPLING_REPLACED: ReasonRow(
        "Normal", "Event only: rows or agents asked for other sampling settings, and the run's were used."
    ),
    Reason.RECORDS_INCOMPLETE: ReasonRow(
        "Warning",
        "Event only: the records of some steps are missing. spec.trainer.records.maxSize is reached, so the oldest are "
        "removed, or the volume takes them more slowly than steps come.",
        fix="Raise spec.trainer.records.maxSize, record less (samples: Sampled), or take Parquet instead of JSONL.",
    ),
    Reason.MODEL_PUSHED: ReasonRow("Normal", "Event only: where spec.trainer.push has uploaded the final model."),
    Reason.PUSH_FAILED: ReasonRow(
        "Warning",
        "Event only: the final model could not be uploaded to spec.trainer.push. It is on the checkpoint volume. The "
        "message says why.",
        fix="Mend what the message quotes, most often a key of the Secret or a right of its account. Then upload the "
        "model from the checkpoint volume (docs/outputs.md says how), or let another run go on from it.",
    ),
    # Healthy: what the trainer measures about its own samples and pace
    Reason.NO_ALARM: ReasonRow("Normal", "No alarm is active."),
    Reason.KL_HIGH: ReasonRow(
        "Warning",
        "The KL divergence between trainer and vLLM is far above what stale weights explain.",
        fix="Most often the learning rate is too high, or samples are old: lower learning_rate or "
        "spec.rollout.maxStaleness, or set spec.rollout.correction. If the message names samples that a grammar "
        "restricted (tool_choice, JSON schemas), their log-probabilities count only the allowed tokens: leave "
        "the grammar out for the policy's calls.",
    ),
    Reason.RATIO_OFF: ReasonRow(
        "Warning",
        "On fresh samples, the probability ratio of trainer and vLLM is not 1.",
        fix="Trainer and vLLM compute different probabilities with the same weights. Compare the data types "
        "(spec.model.dtype, trainer.config.dtype), leave out quantization and logits processors in "
        "spec.inference.args, and set top_k, top_p, min_p and penalties nowhere.",
    ),
    Reason.PARITY_OFF: ReasonRow(
        "Warning",
        "Recomputed log-probabilities drift towards the parity threshold.",
        fix="As for RatioOff. If the difference is what your data type gives (bfloat16 in a deep model), raise "
        "spec.weightSync.parityThreshold.",
    ),
    Reason.STALLED: ReasonRow(
        "Warning",
        "No step for many times the usual time. The message says where the time goes.",
        fix="The message says what the trainer waits for. Rollouts: see the logs of the agent and the gateway, and "
        "spec.rollout.timeoutSeconds. A weight sync: see the vLLM pods, and spec.weightSync.timeoutSeconds. "
        "Training: see the trainer's log and the node.",
    ),
    Reason.CHECKPOINT_FAILED: ReasonRow(
        "Warning",
        "A checkpoint could not be written. Training continues, and the next one is tried.",
        fix="Make room on the checkpoint volume, or set save_total_limit. Until a checkpoint can be written, a "
        "failing attempt falls back to the last one.",
    ),
    Reason.RECORDS_FAILED: ReasonRow(
        "Warning",
        "The records of a step could not be written. Training continues, and the next step's are tried.",
        fix="Make room on the checkpoint volume, or lower spec.trainer.records.maxSize.",
    ),
    Reason.REPORTER_FAILED: ReasonRow(
        "Warning",
        "An experiment tracker of trainer.config.report_to takes no reports. The message names it and its error. "
        "Training continues; after some failures, the tracker is switched off for the rest of the attempt.",
        fix="Mend what the message quotes: a key (spec.trainer.env), the network (an egress rule or a proxy), or the "
        "tracker's server. Reports come again with the next attempt: suspend the run and resume it. "
        "What was missed stands in rewards.csv and in TensorBoard's files.",
    ),
    Reason.ENVIRONMENT_FAILING: ReasonRow(
        "Warning",
        "Every rollout group of an agent fails. The message names the agent and its error. Other agents continue.",
        fix="The message has the innermost error and the server that raised it: mend the environment, or leave its "
        "dataset out. For failures that the policy causes, choose what they count as: "
        "spec.rollout.onFailure.environment.",
    ),
    Reason.NO_LEDGER_ENTRY: ReasonRow(
        "Warning",
        "Rows are given up, because no gateway pod knows which weights sampled their model calls. The message says "
        "what to set.",
        fix="Do what the message says: keep more calls in the gateway, or let the agents call the run's policy "
        "model and no other.",
    ),
    # Suspended
    Reason.SUSPENDED: ReasonRow("Normal", "spec.suspend is true."),
    Reason.RESUMED: ReasonRow("Normal", "spec.suspend became false again."),
    Reason.NOT_SUSPENDED: ReasonRow(None, "spec.suspend is false."),
    # Complete, Failed
    Reason.TRAINING_COMPLETED: ReasonRow("Normal", "Training reached its last step."),
    Reason.RUNNING: ReasonRow(None, "The run hasn't ended."),
    Reason.BACKOFF_LIMIT_EXCEEDED: ReasonRow(
        "Warning",
        "The first attempt and spec.backoffLimit more have failed.",
        fix="The message has the last lines of the last attempt; `kubectl logs job/RUN-trainer-N` has the others. "
        "Mend the cause, and apply a run with spec.resumeFrom: RUN to go on from its last checkpoint.",
    ),
    Reason.TRAINER_REFUSED: ReasonRow(
        "Warning",
        "The trainer reported that retrying can't help. The message says why.",
        fix="Change what the message names, and apply a run with another name; spec.resumeFrom continues from the "
        "checkpoints of this one.",
    ),
    Reason.DEADLINE_EXCEEDED: ReasonRow(
        "Warning",
        "spec.activeDeadlineSeconds has passed.",
        fix="To go on from the last checkpoint, apply a run with spec.resumeFrom: RUN and a longer "
        "spec.activeDeadlineSeconds.",
    ),
    Reason.STARTUP_DEADLINE_EXCEEDED: ReasonRow(
        "Warning",
        "The servers weren't ready within spec.startupDeadlineSeconds.",
        fix="The message names the pods that weren't ready. Slow images or large models: raise "
        "spec.startupDeadlineSeconds, fetch the model once (spec.model.storage), keep what vLLM compiles "
        "(spec.inference.compileCache). No room: see WaitingForCapacity.",
    ),
}

_OF_ANOTHER_RELEASE = ReasonRow("Normal", "")


def reason_row(reason: str) -> ReasonRow:
    """The row of a reason in a status. A reason of another release counts as a normal event, without a meaning."""
    return REASONS[Reason(reason)] if reason in Reason else _OF_ANOTHER_RELEASE
