"""`spec.gym`: the NeMo Gym servers."""

from typing import Annotated

from pydantic import Field

from gymtrain_api.spec.base import CIDR_PATTERN, NAME_PATTERN, KubernetesObject, PodSettings, Spec


class GymServer(PodSettings):
    """Pod settings of one Gym server."""

    replicas: int = Field(1, ge=0, le=256, description="Pods of this server.")


class GymEgress(Spec):
    """What Gym servers reach beside the run's own pods and DNS."""

    cidrs: list[Annotated[str, Field(pattern=CIDR_PATTERN, max_length=64)]] = Field(
        default_factory=list,
        max_length=64,
        description="Address ranges, except the metadata services of clouds in wider ranges. [0.0.0.0/0] is every IPv4 "
        "address. To some network plugins a range never means pods of the cluster: name their namespaces.",
    )
    namespaces: list[Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]] = Field(
        default_factory=list, max_length=64, description="Namespaces whose pods Gym servers reach, such as a judge's."
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=64, description="TCP ports that are opened there. Defaults to all."
    )


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
        max_length=256,
        description="Pod settings by server name (the top-level keys of the Gym config).",
    )
    env: list[KubernetesObject] = Field(
        default_factory=list,
        max_length=256,
        description="Environment of every Gym server (EnvVar; secrets by valueFrom.secretKeyRef), for ${oc.env:NAME} "
        "in the Gym config, such as keys of judge models and external services.",
    )
    egress: GymEgress | None = Field(
        None,
        description="What Gym servers reach beside the run's own pods and DNS: judges, tools and downloads of an "
        "environment. By default nothing. Can change during a run.",
    )
