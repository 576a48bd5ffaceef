"""What all blocks of the spec share."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# Kubernetes' own objects are passed through as they are: the API server checks them when the
# pods are created, and a copy of their schema here would age.
type KubernetesObject = dict[str, Any]

DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
CIDR_PATTERN = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
IMAGE_PATTERN = r"^[a-zA-Z0-9][-a-zA-Z0-9._:/@]*$"


class Spec(BaseModel):
    """Base of every part of the spec: camelCase on the wire, unknown fields refused, immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SecretKeyRef(Spec):
    """A key of a Secret in the run's namespace."""

    name: str = Field(min_length=1, description="Name of the Secret.")
    key: str = Field(min_length=1, description="Key in the Secret.")


class PodSettings(Spec):
    """What every block that makes pods accepts."""

    image: str | None = Field(None, description="Image that replaces the operator's default for these pods.")
    resources: KubernetesObject | None = Field(
        None, description="Resource requests and limits of the main container (ResourceRequirements)."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec that is merged over what the operator builds, by strategic "
        "merge: containers, volumes and env merge by name. The way out for node selectors, "
        "tolerations, volumes, env, image pull secrets, runtime class. automountServiceAccountToken stays false.",
    )
