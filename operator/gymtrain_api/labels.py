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


class Role(StrEnum):
    """Value of the role label: which part of the run a pod is."""

    PREFLIGHT = "preflight"
    GYM = "gym"
    GATEWAY = "gateway"
    INFERENCE = "inference"
    TRAINER = "trainer"


def run_labels(run: str, role: Role | None = None) -> dict[str, str]:
    """Labels of an object of the run; with a role, also the selector of its pods."""
    labels = {MANAGED_BY: MANAGED_BY_VALUE, RUN: run}
    return labels | {ROLE: str(role)} if role else labels
