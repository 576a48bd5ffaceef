"""Labels, annotations and the field manager. Users select on them, so they are promises."""

from enum import StrEnum

GROUP = "gymtrain.dev"
VERSION = "v1alpha1"
KIND = "GymTrainingRun"
PLURAL = "gymtrainingruns"
SHORT_NAME = "gtr"
API_VERSION = f"{GROUP}/{VERSION}"

DEFAULTS_KIND = "GymTrainingDefaults"
DEFAULTS_PLURAL = "gymtrainingdefaults"

FIELD_MANAGER = "gymtrain-operator"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE = "gymtrain"
RUN = f"{GROUP}/run"
ROLE = f"{GROUP}/role"
SERVER = f"{GROUP}/server"
ATTEMPT = f"{GROUP}/attempt"
CONFIG_HASH = f"{GROUP}/config-hash"

IMAGES = f"{GROUP}/images"  # on the preflight pod: JSON of `status.Images`, which the whole run uses

BROKER_IDENTITY = f"{GROUP}/broker-identity"  # on the broker's Service: name of its ServiceAccount and Secret

WOKEN_AT = f"{GROUP}/woken-at"  # on a trainer's Job: when the operator last had the Job controller look at it

# On the run itself, "true": the operator makes its preflight, and nothing after it (gymtrain validate).
PREFLIGHT_ONLY = f"{GROUP}/preflight-only"

# On the run itself: what must be known about it if its status is lost (record.py).
RECORD = f"{GROUP}/record"

# On the broker's Deployment: the backend of its sandboxes, and why it was chosen.
SANDBOX_BACKEND = f"{GROUP}/sandbox-backend"
SANDBOX_BACKEND_REASON = f"{GROUP}/sandbox-backend-reason"

# On sandbox pods, or their SandboxClaims. The broker stores no state itself: after a restart it reads it from here.
BROKER_VALUE = "gymtrain-broker"  # of MANAGED_BY on sandbox pods
SANDBOX_SHAPE = f"{GROUP}/sandbox-shape"  # label: pods with the same value differ only in their names
SANDBOX_IMAGE = f"{GROUP}/sandbox-image"  # as requested, before imageRewrites
SANDBOX_MADE_FOR = f"{GROUP}/sandbox-made-for"  # Claim, Pool, LookAhead or PrePull
SANDBOX_CLAIM = f"{GROUP}/sandbox-claim"  # id of the sandbox that the pod is leased to; empty while it is free
SANDBOX_LEASE = f"{GROUP}/sandbox-lease"  # JSON: since when, for how long, at which restartCount of the container
SANDBOX_REQUEST = f"{GROUP}/sandbox-request"  # JSON: the request
SANDBOX_TASK = f"{GROUP}/sandbox-task"
SANDBOX_EXPIRES_AT = f"{GROUP}/sandbox-expires-at"  # RFC 3339; a leased pod is closed at this time


class Role(StrEnum):
    """Value of the role label: the part of the run that a pod belongs to."""

    PREFLIGHT = "preflight"
    GYM = "gym"
    GATEWAY = "gateway"
    INFERENCE = "inference"
    INFERENCE_WORKER = "inference-worker"  # of a vLLM server of several pods: all but the leader, which has INFERENCE
    TRAINER = "trainer"
    BROKER = "broker"
    SANDBOX = "sandbox"


def run_labels(run: str, role: Role | None = None) -> dict[str, str]:
    """Labels of an object of the run. With a role, they also select its pods."""
    labels = {MANAGED_BY: MANAGED_BY_VALUE, RUN: run}
    return labels | {ROLE: str(role)} if role else labels
