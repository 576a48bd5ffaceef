"""`spec.sandboxes`: one pod per task."""

from typing import Annotated, Literal

from pydantic import Field

from gymtrain_api.spec.base import CIDR_PATTERN, IMAGE_PATTERN, SIZE_PATTERN, KubernetesObject, Spec


class WarmPool(Spec):
    """Sandboxes of one image that are ready before they are requested."""

    image: str = Field(
        pattern=IMAGE_PATTERN,
        max_length=512,
        description="Image, as the environment requests it (before imageRewrites).",
    )
    replicas: int = Field(1, ge=0, le=4096, description="Free sandboxes to keep ready.")
    reuse: Literal["Never", "Restart"] = Field(
        "Never",
        description="What happens to a sandbox after its task. Never: it is deleted. Restart: its container is "
        "restarted with a fresh file system and serves another task. Some sandboxes are still deleted: those whose "
        "restart the kubelet would delay (from the second restart on, if the container ran for less than ten "
        "minutes), and those that run as root, which can write the pod's own files, such as /etc/hosts. Restart needs "
        "the backend Pod.",
    )


class LookAhead(Spec):
    """Sandboxes made for tasks that the trainer has announced."""

    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Sandboxes made ahead for the next announced tasks, in addition to those of the warm pools.",
    )


class SandboxNetwork(Spec):
    """What sandboxes can reach."""

    mode: Literal["Closed", "EgressAllowed"] = Field(
        "Closed",
        description="Closed: sandboxes reach nothing, not even DNS. EgressAllowed: they reach the ranges of cidrs, and "
        "DNS. In both modes, only the run's broker and Gym servers reach a sandbox.",
    )
    cidrs: list[Annotated[str, Field(pattern=CIDR_PATTERN, max_length=64)]] = Field(
        default_factory=list,
        max_length=64,
        description="Address ranges that EgressAllowed opens, except the metadata services of clouds in wider ranges.",
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=64, description="TCP ports that EgressAllowed opens. Defaults to all."
    )


class MaxResources(Spec):
    """The most that a request may ask for."""

    cpu: float | None = Field(None, ge=0.01, le=1024, description="CPUs.")
    memory: str | None = Field(None, pattern=SIZE_PATTERN, max_length=32, description="Memory, such as 16Gi.")
    ephemeral_storage: str | None = Field(None, pattern=SIZE_PATTERN, max_length=32, description="Disk, such as 50Gi.")


class ImageRewrite(Spec):
    """Another location for images."""

    from_: str = Field(
        alias="from",
        min_length=1,
        max_length=512,
        description="Prefix of the image as the environment requests it, or of its full name: docker.io/ matches a/b, "
        "which is docker.io/a/b.",
    )
    to: str = Field(max_length=512, description="Replacement for the prefix.")


class PrePull(Spec):
    """Images to pull before a sandbox needs them, and how fast."""

    max_per_registry: int = Field(
        4,
        ge=1,
        le=1024,
        description="New images to pull ahead from one registry at the same time, including those of sandboxes made "
        "ahead. After a registry answers 429, pulls from it pause, longer each time.",
    )
    images: list[Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)]] = Field(
        default_factory=list,
        max_length=256,
        description="Images to pull as soon as the broker is up, in this order, as the environment requests them "
        "(before imageRewrites).",
    )
    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Announced tasks, after those of lookAhead, to pull images for. This uses none of the sandboxes' "
        "CPU and memory, and makes their start short.",
    )
    nodes: int = Field(
        1,
        ge=1,
        le=256,
        description="Nodes that get each of these images, or fewer if the cluster has fewer. The scheduler prefers "
        "nodes that have an image.",
    )


class ImagePullSecret(Spec):
    """A Secret with a registry's credentials."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret in the run's namespace.")


class Sandboxes(Spec):
    """One pod per task in which an agent runs commands."""

    backend: Literal["Auto", "Pod", "AgentSandbox"] = Field(
        "Auto",
        description="How sandboxes are made. Pod: the broker makes pods. AgentSandbox: the broker makes SandboxClaims "
        "of agent-sandbox v1 (extensions.agents.x-k8s.io/v1beta1), and agent-sandbox's controller makes the pods; it "
        "must be installed with its extensions. Auto: AgentSandbox if the cluster serves it, its controller answers "
        "and no warm pool has reuse: Restart, otherwise Pod. The condition SandboxesReady says which one, and why. "
        "Can't change after preflight has passed.",
    )
    max_concurrent: int = Field(
        64, ge=1, le=65536, description="Sandboxes in use or being started for a task. Further requests wait."
    )
    max_queued: int = Field(4096, ge=0, le=65536, description="Requests that may wait. Further ones are refused (429).")
    warm_pools: list[WarmPool] = Field(
        default_factory=list,
        max_length=256,
        description="Sandboxes to keep ready, by image.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["image"]},
    )
    look_ahead: LookAhead = Field(
        default_factory=LookAhead, description="Sandboxes made for tasks that the trainer has announced."
    )
    timeout_seconds: int = Field(18000, ge=10, le=604800, description="Maximum lifetime of a sandbox in use.")
    idle_timeout_seconds: int = Field(
        1800, ge=10, le=604800, description="Time without a command or file access after which a sandbox is closed."
    )
    start_timeout_seconds: int = Field(
        1200, ge=1, le=86400, description="Maximum time for a sandbox to start, including pulling its image."
    )
    queue_timeout_seconds: int = Field(
        3600, ge=1, le=86400, description="Maximum time for a request to wait for its turn."
    )
    resources: KubernetesObject | None = Field(
        None,
        description="Resource requests and limits of a sandbox whose task sets none (ResourceRequirements), merged "
        "over requests of 100m CPU, 128Mi memory, 256Mi ephemeral-storage and limits of 4Gi memory, 20Gi "
        "ephemeral-storage. A task's own resources replace the limits, up to maxResources.",
    )
    max_resources: MaxResources = Field(
        default_factory=MaxResources,
        description="The most that a task's own resources may be, if that is less than what the chart allows "
        "(sandboxes.maxResources). Requests for more, and for more than the limits in resources, are refused.",
    )
    runtime_class_name: str | None = Field(
        None, min_length=1, max_length=253, description="RuntimeClass, such as one of gVisor or Kata Containers."
    )
    network: SandboxNetwork = Field(default_factory=SandboxNetwork, description="What sandboxes can reach.")
    root: bool = Field(
        False,
        description="true runs commands as root in the container, with the capabilities CHOWN, DAC_OVERRIDE, FOWNER, "
        "SETUID, SETGID and KILL. SWE-bench's images need it. false: restricted Pod Security, user 65532.",
    )
    host_users: bool | None = Field(
        None,
        description="false gives each sandbox a user namespace, so its root has no rights on the node. Nodes and "
        "runtime must support it, otherwise no sandbox starts. true never does. By default, sandboxes with root and "
        "without runtimeClassName get one if the chart's sandboxes.userNamespaces says that the cluster supports it.",
    )
    image_pull_secrets: list[ImagePullSecret] = Field(
        default_factory=list, max_length=32, description="Secrets with credentials for the registries of task images."
    )
    image_rewrites: list[ImageRewrite] = Field(
        default_factory=list,
        max_length=64,
        description="Image prefixes to replace, for example with a mirror. The first match applies.",
    )
    pre_pull: PrePull = Field(
        default_factory=PrePull, description="Images to pull before a sandbox needs them, and how fast."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec, merged over sandbox pods by strategic merge. The task's container is "
        "called sandbox. Its command, restart policy and deadline can't change, and it gets no ServiceAccount token.",
    )
