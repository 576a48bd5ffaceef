"""`spec.sandboxes`: a pod per task."""

from typing import Annotated, Literal

from pydantic import Field

from gymtrain_api.spec.base import CIDR_PATTERN, IMAGE_PATTERN, KubernetesObject, Spec


class WarmPool(Spec):
    """Sandboxes of one image that are ready before they are asked for."""

    image: str = Field(
        pattern=IMAGE_PATTERN,
        max_length=512,
        description="Image, as the environment asks for it (before imageRewrites).",
    )
    replicas: int = Field(1, ge=0, le=4096, description="Free sandboxes to keep ready.")
    reuse: Literal["Never", "Restart"] = Field(
        "Never",
        description="What becomes of a sandbox after its task. Never: it is deleted. Restart: its container is started "
        "anew with a fresh file system and serves another task, unless the kubelet would delay the restart: it does "
        "so for containers that are restarted for a second time and ran for less than ten minutes. Those are deleted, "
        "and so are all that run as root, which can write the pod's own files, such as /etc/hosts. "
        "Restart needs the backend Pod.",
    )


class LookAhead(Spec):
    """Sandboxes made for tasks that the trainer has announced."""

    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Sandboxes made ahead for the announced tasks that come next, besides those of the warm pools.",
    )


class SandboxNetwork(Spec):
    """What sandboxes reach."""

    mode: Literal["Closed", "EgressAllowed"] = Field(
        "Closed",
        description="Closed: nothing, not even DNS. EgressAllowed: the ranges of cidrs, and DNS. Either way only the "
        "run's broker and Gym servers reach a sandbox.",
    )
    cidrs: list[Annotated[str, Field(pattern=CIDR_PATTERN, max_length=64)]] = Field(
        default_factory=list,
        max_length=64,
        description="Address ranges that EgressAllowed opens, but for the metadata services of clouds in wider ones.",
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=64, description="TCP ports that EgressAllowed opens; all where left out."
    )


class ImageRewrite(Spec):
    """Another place for images."""

    from_: str = Field(
        alias="from",
        min_length=1,
        max_length=512,
        description="Prefix of the image as the environment asks for it, or of its full name: docker.io/ fits a/b, "
        "which is docker.io/a/b.",
    )
    to: str = Field(max_length=512, description="What stands in its stead.")


class PrePull(Spec):
    """Images that are pulled before a sandbox needs them, and how fast."""

    max_per_registry: int = Field(
        4,
        ge=1,
        le=1024,
        description="New images that are pulled ahead from one registry at once, by sandboxes made ahead too. A "
        "registry that answers 429 is left alone for a while, longer each time, and then asked again.",
    )
    images: list[Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)]] = Field(
        default_factory=list,
        max_length=256,
        description="Images to pull as soon as the broker is up, as the environment asks for them (before "
        "imageRewrites), in this order.",
    )
    tasks: int = Field(
        0,
        ge=0,
        le=4096,
        description="Announced tasks, after those of lookAhead, whose images are pulled: that takes no CPU and memory "
        "of sandboxes, and their start is short.",
    )
    nodes: int = Field(
        1,
        ge=1,
        le=256,
        description="Nodes that get each of these images, fewer where there are fewer. The scheduler prefers nodes "
        "that have an image.",
    )


class ImagePullSecret(Spec):
    """A Secret with a registry's credentials."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret in the run's namespace.")


class Sandboxes(Spec):
    """One pod per task in which an agent runs commands."""

    backend: Literal["Auto", "Pod", "AgentSandbox"] = Field(
        "Auto",
        description="What sandboxes are made of. Pod: pods that the broker makes. AgentSandbox: SandboxClaims of "
        "agent-sandbox v1 (extensions.agents.x-k8s.io/v1beta1), whose controller makes the pods; needs it installed "
        "with its extensions. Auto: AgentSandbox where the cluster serves it, its controller answers and no warm pool "
        "has reuse: Restart; else Pod. The condition SandboxesReady says which, and why. Fixed once preflight has "
        "passed.",
    )
    max_concurrent: int = Field(
        64, ge=1, le=65536, description="Sandboxes in use or being started for a task; further requests wait."
    )
    max_queued: int = Field(4096, ge=0, le=65536, description="Requests that may wait; further ones are refused (429).")
    warm_pools: list[WarmPool] = Field(
        default_factory=list,
        max_length=256,
        description="Sandboxes kept ready, by image.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["image"]},
    )
    look_ahead: LookAhead = Field(
        default_factory=LookAhead, description="Sandboxes made for tasks that the trainer has announced."
    )
    timeout_seconds: int = Field(18000, ge=10, le=604800, description="Longest life of a sandbox in use.")
    idle_timeout_seconds: int = Field(
        1800, ge=10, le=604800, description="Time without a command or file access after which a sandbox is closed."
    )
    start_timeout_seconds: int = Field(
        1200, ge=1, le=86400, description="Time that a sandbox may take to start, pulling its image included."
    )
    queue_timeout_seconds: int = Field(3600, ge=1, le=86400, description="Time that a request may wait for its turn.")
    resources: KubernetesObject | None = Field(
        None,
        description="Resource requests and limits of a sandbox that asks for none (ResourceRequirements), merged over "
        "requests of 100m CPU, 128Mi memory, 256Mi ephemeral-storage and limits of 4Gi memory, 20Gi ephemeral-storage. "
        "What a task asks for replaces the limits.",
    )
    runtime_class_name: str | None = Field(
        None, min_length=1, max_length=253, description="RuntimeClass, such as one of gVisor or Kata Containers."
    )
    network: SandboxNetwork = Field(default_factory=SandboxNetwork, description="What sandboxes reach.")
    root: bool = Field(
        False,
        description="Commands run as root in the container, with the capabilities CHOWN, DAC_OVERRIDE, FOWNER, SETUID, "
        "SETGID and KILL. SWE-bench's images need it. false: restricted Pod Security, user 65532.",
    )
    host_users: bool | None = Field(
        None,
        description="false gives each sandbox a user namespace: its root is nobody on the node. Needs nodes and a "
        "runtime that support it: elsewhere no sandbox starts. true never does. Left out, sandboxes with root and "
        "without runtimeClassName get one where the operator was told that the cluster has them "
        "(sandboxes.userNamespaces of the chart).",
    )
    image_pull_secrets: list[ImagePullSecret] = Field(
        default_factory=list, max_length=32, description="Secrets with credentials of the registries of task images."
    )
    image_rewrites: list[ImageRewrite] = Field(
        default_factory=list,
        max_length=64,
        description="Prefixes of images to replace, for a mirror; the first that fits applies.",
    )
    pre_pull: PrePull = Field(
        default_factory=PrePull, description="Images that are pulled before a sandbox needs them, and how fast."
    )
    template: KubernetesObject | None = Field(
        None,
        description="Partial PodTemplateSpec that is merged over sandbox pods, by strategic merge; the task's "
        "container is called sandbox. What stays: its command, restart policy, deadline, no ServiceAccount token.",
    )
