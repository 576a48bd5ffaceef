"""Types that all blocks of the spec share."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# Kubernetes' own objects are passed through unchanged: the API server checks them when the
# pods are created, and a copy of their schema here would become outdated.
type KubernetesObject = dict[str, Any]

DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
CIDR_PATTERN = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
IMAGE_PATTERN = r"^[a-zA-Z0-9][-a-zA-Z0-9._:/@]*$"
OTLP_PATTERN = r"^https?://[^/@ ]+(/[^ ]*)?$"
GPU_RESOURCE_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?$"

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def bytes_of(size: str) -> int:
    """The bytes of a size that fits SIZE_PATTERN, such as 20Gi."""
    number = size.rstrip("kKMGTi")
    return int(float(number) * _UNITS[size.removeprefix(number)])


class Spec(BaseModel):
    """Base of every part of the spec: camelCase on the wire, unknown fields refused, immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SecretKeyRef(Spec):
    """A key of a Secret in the run's namespace."""

    name: str = Field(min_length=1, description="Name of the Secret.")
    key: str = Field(min_length=1, description="Key in the Secret.")


class SecretRef(Spec):
    """A Secret in the run's namespace."""

    name: str = Field(min_length=1, description="Name of the Secret.")


class PodSettings(Spec):
    """Settings that every block that makes pods accepts."""

    image: str | None = Field(None, description="Image for these pods instead of the operator's default.")
    resources: KubernetesObject | None = Field(
        None, description="Resource requests and limits of the main container (ResourceRequirements)."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec, merged over the operator's pod template by strategic merge: containers, "
        "volumes and env merge by name. Use it for node selectors, tolerations, volumes, env, image pull secrets and "
        "runtime class. automountServiceAccountToken stays false.",
    )
