"""Condition types and reasons: constants that programs can rely on."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Types of `status.conditions`."""

    PREFLIGHT_PASSED = "PreflightPassed"
    ADMITTED = "Admitted"
    GYM_READY = "GymReady"
    INFERENCE_READY = "InferenceReady"
    GATEWAY_READY = "GatewayReady"
    SANDBOXES_READY = "SandboxesReady"
    WEIGHT_SYNC_READY = "WeightSyncReady"
    PROGRESSING = "Progressing"
    HEALTHY = "Healthy"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons of conditions and of events."""

    # PreflightPassed
    PREFLIGHT_RUNNING = "PreflightRunning"
    PREFLIGHT_PASSED = "PreflightPassed"
    PREFLIGHT_ONLY = "PreflightOnly"
    PREFLIGHT_WARNED = "PreflightWarnings"  # only in an event: preflight passed, and the message lists warnings
    PREFLIGHT_FAILED = "PreflightFailed"
    PREFLIGHT_ERROR = "PreflightError"  # the check itself failed: image pull, crash, deadline
    INVALID_SPEC = "InvalidSpec"
    # Admitted
    WAITING_FOR_QUOTA = "WaitingForQuota"
    ADMITTED = "Admitted"
    EVICTED = "Evicted"
    # GymReady, InferenceReady
    WAITING_FOR_PREFLIGHT = "WaitingForPreflight"
    PODS_STARTING = "PodsStarting"
    ALL_READY = "AllReady"
    PODS_NOT_READY = "PodsNotReady"
    # WeightSyncReady
    WAITING_FOR_INFERENCE = "WaitingForInference"
    TRANSPORT_CHOSEN = "TransportChosen"
    TRANSPORT_UNAVAILABLE = "TransportUnavailable"
    # Progressing
    WAITING_FOR_SERVERS = "WaitingForServers"
    TRAINER_STARTING = "TrainerStarting"
    WAITING_FOR_ROLLOUTS = "WaitingForRollouts"
    TRAINING = "Training"
    API_SERVER_ERROR = "APIServerError"
    ROLLOUTS_FAILING = "RolloutsFailing"
    RETRYING = "Retrying"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"  # the run has trained, but now its pods find no room
    FINISHED = "Finished"
    # Only events
    CHECKPOINTS_SET_ASIDE = "CheckpointsSetAside"
    RESUMED_FROM_CHECKPOINT = "ResumedFromCheckpoint"
    SAMPLING_REPLACED = "SamplingReplaced"
    RECORDS_INCOMPLETE = "RecordsIncomplete"
    MODEL_PUSHED = "ModelPushed"
    PUSH_FAILED = "PushFailed"
    # Healthy: what the trainer measures about its own samples and pace
    NO_ALARM = "NoAlarm"
    KL_HIGH = "KLHigh"
    RATIO_OFF = "RatioOff"
    PARITY_OFF = "ParityOff"
    STALLED = "Stalled"
    CHECKPOINT_FAILED = "CheckpointFailed"
    RECORDS_FAILED = "RecordsFailed"
    REPORTER_FAILED = "ReporterFailed"
    ENVIRONMENT_FAILING = "EnvironmentFailing"
    NO_LEDGER_ENTRY = "NoLedgerEntry"
    # Suspended
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"
    # Complete, Failed
    TRAINING_COMPLETED = "TrainingCompleted"
    RUNNING = "Running"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    TRAINER_REFUSED = "TrainerRefused"  # the trainer reported that retrying can't help
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
