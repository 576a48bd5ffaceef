"""Labels, annotations and the field manager: promises to people who select on them."""

from enum import StrEnum

GROUP = "gymtrain.dev"
VERSION = "v1alpha1"
KIND = "GymTrainingRun"
PLURAL = "gymtrainingruns"
SHORT_NAME = "gtr"
API_VERSION = f"{GROUP}/{VERSION}"

FIELD_MANAGER = "gymtrain-operator"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE = "gymtrain"
RUN = f"{GROUP}/run"
ROLE = f"{GROUP}/role"
SERVER = f"{GROUP}/server"
ATTEMPT = f"{GROUP}/attempt"
CONFIG_HASH = f"{GROUP}/config-hash"

IMAGES = f"{GROUP}/images"  # on the preflight pod: JSON of `status.Images`, which the whole run will use

BROKER_IDENTITY = f"{GROUP}/broker-identity"  # on the broker's Service: name of its ServiceAccount and Secret

# On the run itself: what has to be known of it where its status is lost (record.py).
RECORD = f"{GROUP}/record"

# On the broker's Deployment: what its sandboxes are made of, and why.
SANDBOX_BACKEND = f"{GROUP}/sandbox-backend"
SANDBOX_BACKEND_REASON = f"{GROUP}/sandbox-backend-reason"

# On sandbox pods, or their SandboxClaims. The broker holds no state of its own: what it knows after a restart stands
# here.
BROKER_VALUE = "gymtrain-broker"  # of MANAGED_BY on sandbox pods
SANDBOX_SHAPE = f"{GROUP}/sandbox-shape"  # label: pods with the same value are the same but for their names
SANDBOX_IMAGE = f"{GROUP}/sandbox-image"  # as it was asked for, before imageRewrites
SANDBOX_MADE_FOR = f"{GROUP}/sandbox-made-for"  # Claim, Pool, LookAhead or PrePull
SANDBOX_CLAIM = f"{GROUP}/sandbox-claim"  # id of the sandbox that the pod is leased to; empty while it is free
SANDBOX_LEASE = f"{GROUP}/sandbox-lease"  # JSON: since when, for how long, at which restartCount of the container
SANDBOX_REQUEST = f"{GROUP}/sandbox-request"  # JSON: what was asked for
SANDBOX_TASK = f"{GROUP}/sandbox-task"
SANDBOX_EXPIRES_AT = f"{GROUP}/sandbox-expires-at"  # RFC 3339; a leased pod has no business to live longer


class Role(StrEnum):
    """Value of the role label: which part of the run a pod is."""

    PREFLIGHT = "preflight"
    GYM = "gym"
    GATEWAY = "gateway"
    INFERENCE = "inference"
    TRAINER = "trainer"
    BROKER = "broker"
    SANDBOX = "sandbox"


def run_labels(run: str, role: Role | None = None) -> dict[str, str]:
    """Labels of an object of the run; with a role, also the selector of its pods."""
    labels = {MANAGED_BY: MANAGED_BY_VALUE, RUN: run}
    return labels | {ROLE: str(role)} if role else labels
