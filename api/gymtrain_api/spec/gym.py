"""`spec.gym`: the NeMo Gym servers."""

from typing import Annotated

from pydantic import Field

from gymtrain_api.spec.base import KubernetesObject, PodSettings


class GymServer(PodSettings):
    """Pod settings of one Gym server."""

    replicas: int = Field(1, ge=0, le=256, description="Pods of this server.")


class Gym(PodSettings):
    """The NeMo Gym servers, as ng_run would start them."""

    config_paths: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        min_length=1,
        max_length=32,
        description="Config files as for ng_run, relative to NeMo Gym's root in the Gym image. The policy model "
        "server is added if the files define none.",
    )
    overrides: KubernetesObject = Field(
        default_factory=dict, description="Mapping that OmegaConf merges over the config files, last."
    )
    servers: dict[str, GymServer] = Field(
        default_factory=dict,
        description="Pod settings by server name (the top-level keys of the Gym config).",
    )
    env: list[KubernetesObject] = Field(
        default_factory=list,
        description="Environment of every Gym server (EnvVar; secrets by valueFrom.secretKeyRef), for ${oc.env:NAME} "
        "in the Gym config, such as keys of judge models and external services.",
    )
