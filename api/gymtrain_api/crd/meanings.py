"""What condition types, reasons and labels mean, for the reference page.

Every member of the enums has an entry here; the page's generator refuses a missing one.
"""

from collections.abc import Mapping

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason

CONDITIONS: Mapping[ConditionType, str] = {
    ConditionType.PREFLIGHT_PASSED: "The Gym config, the datasets, vLLM's arguments, the trainer's settings and the "
    "model were checked in a CPU pod and are good. False names what to fix. No other pod exists before it is True.",
    ConditionType.GYM_READY: "Every Gym server has a ready pod for each replica.",
    ConditionType.INFERENCE_READY: "The vLLM servers answer.",
    ConditionType.GATEWAY_READY: "Every gateway pod answers and knows a vLLM pod that holds the run's weights.",
    ConditionType.SANDBOXES_READY: "The sandbox broker answers; the message says what sandboxes are made of, "
    "and why. Only on runs with spec.sandboxes.",
    ConditionType.WEIGHT_SYNC_READY: "A weight transport was chosen that every vLLM server proved to offer.",
    ConditionType.PROGRESSING: "The run goes forward. The message says what it does or waits for.",
    ConditionType.HEALTHY: "What the trainer measures of its samples and its pace is as it should be. False names the "
    "alarm; the run goes on.",
    ConditionType.SUSPENDED: "spec.suspend is true and the pods are gone.",
    ConditionType.COMPLETE: "Training reached its last step. Final.",
    ConditionType.FAILED: "The run gave up. The message says which part failed and quotes its last lines. Final.",
}

REASONS: Mapping[Reason, str] = {
    Reason.PREFLIGHT_RUNNING: "The checks are running.",
    Reason.PREFLIGHT_PASSED: "All checks passed. The message lists warnings, of what the run may cost its user.",
    Reason.PREFLIGHT_WARNED: "Of an event alone: preflight passed, and warns.",
    Reason.PREFLIGHT_FAILED: "A check found a mistake; the message names file, line or key.",
    Reason.PREFLIGHT_ERROR: "The check itself broke: its image can't be pulled, it crashed, or ran past its deadline.",
    Reason.INVALID_SPEC: "A template makes no valid pod: the message names the field, or quotes the API server. A run "
    "that has trained isn't ended by that but waits, see PodsNotReady. Or the "
    "spec doesn't fit this operator's types: it was stored before the CRD was tightened, or by a later release. A spec "
    "that can't be read once preflight has passed ends nothing: the run's pods are left as they are, and go on.",
    Reason.WAITING_FOR_PREFLIGHT: "Preflight comes first.",
    Reason.PODS_STARTING: "Pods are being scheduled, pulled or started.",
    Reason.ALL_READY: "Every wanted pod is ready.",
    Reason.PODS_NOT_READY: "Pods that were ready no longer are. On Progressing: the API server doesn't take an object "
    "now (a quota, an admission policy, of a later attempt whatever it is); the message quotes it, and it is "
    "tried again after 10 to 60 seconds.",
    Reason.WAITING_FOR_INFERENCE: "The vLLM servers have to answer first.",
    Reason.TRANSPORT_CHOSEN: "The message says which transport and why.",
    Reason.TRANSPORT_UNAVAILABLE: "No transport works with these servers; the message names what is missing.",
    Reason.WAITING_FOR_SERVERS: "The trainer waits for the Gym and vLLM servers.",
    Reason.TRAINER_STARTING: "The trainer's pods are starting.",
    Reason.WAITING_FOR_ROLLOUTS: "The trainer waits for rollouts.",
    Reason.TRAINING: "Optimizer steps are being made.",
    Reason.API_SERVER_ERROR: "For some seconds the API server has answered with errors (5xx, 429, 409, no right) that "
    "keep the operator from going on with this run; the message quotes the last and says since when. It is asked "
    "again; pods that run go on.",
    Reason.ROLLOUTS_FAILING: "Rollouts fail; the run waits until spec.rollout.stallTimeoutSeconds.",
    Reason.RETRYING: "An attempt failed, or a node of it is lost, and the next one starts from the last checkpoint. "
    "The message says when, or what to do about the node.",
    Reason.WAITING_FOR_CAPACITY: "The run has trained before, and no node has room for a pod of it now, or a quota or "
    "a queue holds it back. It waits; the message quotes the scheduler.",
    Reason.NO_ALARM: "No alarm stands.",
    Reason.KL_HIGH: "The KL divergence between trainer and vLLM is far above what stale weights explain.",
    Reason.RATIO_OFF: "On fresh samples the probability ratio of trainer and vLLM is not 1.",
    Reason.PARITY_OFF: "Recomputed log-probabilities drift towards the parity threshold.",
    Reason.STALLED: "No step in many times the usual time; the message says where time goes.",
    Reason.CHECKPOINT_FAILED: "A checkpoint could not be written; training goes on, and the next one is tried.",
    Reason.CHECKPOINTS_SET_ASIDE: "An event alone: the checkpoint folder held an earlier run's, which are below "
    "previous-N now; the message names the folder, and the spec.resumeFrom that goes on from them.",
    Reason.RESUMED_FROM_CHECKPOINT: "An event alone: where spec.resumeFrom made the run go on, in its steps and in the "
    "data.",
    Reason.SAMPLING_REPLACED: "An event alone: rows or agents ask for a sampling of their own, and the run's was used.",
    Reason.ENVIRONMENT_FAILING: "Every rollout group of an agent fails; the message names it and its error. The "
    "others train on.",
    Reason.NO_LEDGER_ENTRY: "Rows are given up, as no gateway pod knows which weights sampled their model calls; the "
    "message says what to set.",
    Reason.FINISHED: "The run has ended; see Complete and Failed.",
    Reason.SUSPENDED: "spec.suspend is true.",
    Reason.RESUMED: "spec.suspend became false again.",
    Reason.NOT_SUSPENDED: "spec.suspend is false.",
    Reason.TRAINING_COMPLETED: "Training reached its last step.",
    Reason.RUNNING: "The run hasn't ended.",
    Reason.BACKOFF_LIMIT_EXCEEDED: "spec.backoffLimit attempts after the first have failed too.",
    Reason.TRAINER_REFUSED: "The trainer said that trying again can't help; the message says why.",
    Reason.DEADLINE_EXCEEDED: "spec.activeDeadlineSeconds has passed.",
    Reason.STARTUP_DEADLINE_EXCEEDED: "The servers weren't ready within spec.startupDeadlineSeconds.",
}

# On objects and pods of a run; select on them.
LABELS: Mapping[str, str] = {
    labels.MANAGED_BY: f"`{labels.MANAGED_BY_VALUE}`: the object belongs to a run; `{labels.BROKER_VALUE}` on sandbox "
    "pods, which the run's broker makes and deletes.",
    labels.RUN: "Name of the run.",
    labels.ROLE: f"Part of the run: {', '.join(f'`{role}`' for role in labels.Role)}.",
    labels.SERVER: "Name of the Gym server.",
    labels.ATTEMPT: "Attempt that the trainer's pods belong to.",
    labels.SANDBOX_SHAPE: "Sandbox pods with the same value are the same but for their names.",
}
