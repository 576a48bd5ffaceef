"""Defaults for runs: what holds for the pods of all runs of a cluster, or of a namespace, unless a run says otherwise.

    the chart's value `defaults`  <  GymTrainingDefaults `default` of the namespace  <  the run's spec and templates
                         └────────── resolve ──────────┘
                                        │ applied when preflight passes, and kept in status.defaults (decision 39)
                    ┌───────────────────┼────────────────────────┐
           sandboxes_with_defaults  pod_template            main_resources, env, images, ...
           of the broker's run.json below the run's template read by the operator's builders

One merge for all levels, that of templates (`merge`): mappings by key, env and pull secrets by name, tolerations as a
whole.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic.alias_generators import to_camel

from gymtrain_api.errors import ApiError
from gymtrain_api.merge import merge
from gymtrain_api.spec import GymTrainingRunSpec, Sandboxes, Tracing
from gymtrain_api.spec.base import CIDR_PATTERN, GPU_RESOURCE_PATTERN, IMAGE_PATTERN, OTLP_PATTERN, KubernetesObject

NAME = "default"
"""The only name that the object of a namespace may have: two could contradict each other."""


# Of a sandbox where a quota requires limits: it has one of each other resource anyway.
_SANDBOX_LIMITS = {"cpu": "1"}


class InvalidDefaultsError(ApiError):
    """The defaults don't fit the types. The message names each wrong key and says what it should be."""


class _Part(BaseModel):
    """Base of all parts. Stored objects may be of a later release, so unknown fields are ignored; `parse` refuses
    them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    @model_serializer(mode="wrap")
    def _set_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Writes only what is set: a status with a hundred empty fields helps nobody."""
        return {key: value for key, value in handler(self).items() if value not in (None, [], {})}


class Toleration(_Part):
    """A taint that pods tolerate, as in a pod's tolerations."""

    key: str | None = Field(None, description="Key of the taint. Without it, with Exists, all taints.")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="Exists, or Equal (the default).")
    value: str | None = Field(None, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. Without it, all effects."
    )
    toleration_seconds: int | None = Field(None, description="Time that a pod stays after a taint of NoExecute.")


class PullSecret(_Part):
    """A Secret with a registry's credentials."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret in the run's namespace.")


class EnvVar(_Part):
    """An environment variable."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str = Field("", max_length=4096, description="Its value.")


class Proxy(_Part):
    """How pods reach what is outside of the cluster."""

    http: str | None = Field(None, max_length=2048, description="URL for http (HTTP_PROXY).")
    https: str | None = Field(None, max_length=2048, description="URL for https (HTTPS_PROXY).")
    no_proxy: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=64,
        description="Hosts, domains and address ranges that are reached directly (NO_PROXY), such as the cluster's pod "
        "and service addresses. The run's own Services, .svc, .cluster.local and localhost are added.",
    )


class CABundle(_Part):
    """Certificate authorities that pods trust."""

    config_map: str = Field(
        min_length=1, max_length=253, description="ConfigMap in the run's namespace, such as one of trust-manager."
    )
    key: str = Field(
        "ca-certificates.crt",
        min_length=1,
        max_length=253,
        description="Key with the certificates (PEM). They replace the image's own, so public ones belong into it too.",
    )


class PodDefaults(_Part):
    """Where pods run, and what they get."""

    node_selector: dict[str, str] = Field(
        default_factory=dict, max_length=64, description="Labels that a pod's node must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that the pods tolerate. A run's own list replaces it."
    )
    runtime_class_name: str | None = Field(None, min_length=1, max_length=253, description="RuntimeClass of the pods.")


class RoleDefaults(PodDefaults):
    """The same for the pods of one role."""

    resources: KubernetesObject | None = Field(
        None,
        description="Requests and limits of the main container (ResourceRequirements) where the run sets none.",
    )


class Roles(_Part):
    """Pods by their role. They are merged over what holds for all pods."""

    preflight: PodDefaults = Field(default_factory=PodDefaults, description="The preflight pod, which needs no GPU.")
    gym: RoleDefaults = Field(default_factory=RoleDefaults, description="The Gym servers.")
    gateway: RoleDefaults = Field(default_factory=RoleDefaults, description="The gateway.")
    inference: RoleDefaults = Field(default_factory=RoleDefaults, description="vLLM.")
    trainer: RoleDefaults = Field(default_factory=RoleDefaults, description="The trainer.")
    broker: RoleDefaults = Field(default_factory=RoleDefaults, description="The sandbox broker.")
    sandbox: PodDefaults = Field(default_factory=PodDefaults, description="Sandboxes.")


type _Image = Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)]


class ImageDefaults(_Part):
    """Images where a run names none, best by digest."""

    gym: _Image | None = Field(None, description="Image of the Gym servers.")
    gateway: _Image | None = Field(None, description="Image of the gateway.")
    inference: _Image | None = Field(None, description="Image of vLLM on the CPU.")
    inference_gpu: _Image | None = Field(None, description="Image of vLLM where spec.inference.gpus > 0.")
    trainer: _Image | None = Field(None, description="Image of the trainer on the CPU.")
    trainer_gpu: _Image | None = Field(None, description="Image of the trainer where spec.trainer.gpus > 0.")
    broker: _Image | None = Field(None, description="Image of the sandbox broker.")
    sandbox: _Image | None = Field(None, description="Image with the daemon of the sandboxes.")


class DNS(_Part):
    """Where name servers are, for the NetworkPolicies of sandboxes that may reach something."""

    namespace: str | None = Field(None, min_length=1, max_length=63, description="Namespace of the name servers' pods.")
    pod_labels: dict[str, str] = Field(
        default_factory=dict, max_length=64, description="Labels of those pods. Without them, all."
    )
    cidrs: list[Annotated[str, Field(pattern=CIDR_PATTERN, max_length=64)]] = Field(
        default_factory=list,
        max_length=16,
        description="Their addresses, such as 169.254.20.10/32 (NodeLocal DNSCache).",
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=8, description="Ports of the pods, UDP and TCP. Defaults to 53."
    )


class HeadersSecret(_Part):
    """A key of a Secret in the run's namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, description="Key in the Secret.")


class TracingDefaults(_Part):
    """Where traces of rollouts go, and of how many, as in a run's spec.tracing."""

    endpoint: str | None = Field(
        None,
        pattern=OTLP_PATTERN,
        max_length=2048,
        description="URL of an OTLP receiver over HTTP (protobuf), without /v1/traces: "
        "http://collector.observability.svc:4318.",
    )
    sampling_rate_per_million: int | None = Field(
        None, ge=0, le=1_000_000, description="Rollouts that are traced, of a million. Defaults to 10000."
    )
    headers_secret: HeadersSecret | None = Field(
        None,
        description="Secret key with headers for the receiver (OTEL_EXPORTER_OTLP_HEADERS). It must exist in the "
        "namespaces of the runs.",
    )


class RunDefaults(PodDefaults):
    """Defaults of a cluster or a namespace."""

    image_pull_secrets: list[PullSecret] = Field(
        default_factory=list,
        max_length=32,
        description="Secrets for the registries of all pods' images. They must exist in the namespaces of the runs.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    roles: Roles = Field(default_factory=Roles, description="Settings for the pods of one role.")
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Environment variables of all containers but those in sandboxes.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    proxy: Proxy | None = Field(None, description="Proxies for all containers but those in sandboxes.")
    ca_bundle: CABundle | None = Field(
        None, description="Certificate authorities that all containers but those in sandboxes trust."
    )
    storage_class_name: str | None = Field(
        None, min_length=1, max_length=253, description="StorageClass of new volumes where the run names none."
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Time after its end until a run is deleted, where the run sets none."
    )
    images: ImageDefaults = Field(default_factory=ImageDefaults, description="Images where a run names none.")
    queue_name: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="LocalQueue of Kueue, in the runs' namespace, for runs without the label "
        "kueue.x-k8s.io/queue-name. An empty label keeps a run out of it.",
    )
    gpu_resource_name: str | None = Field(
        None,
        pattern=GPU_RESOURCE_PATTERN,
        max_length=317,
        description="Extended resource that the pods' GPUs are requested by, such as amd.com/gpu or "
        "nvidia.com/mig-1g.10gb, where a run names none. Defaults to nvidia.com/gpu.",
    )
    user_ids: Literal["Fixed", "Assigned"] | None = Field(
        None,
        description="Fixed (the default): pods run as user and group 65532. Assigned: pods name no user and no group, "
        "since the cluster assigns them, as OpenShift's restricted-v2 does.",
    )
    tracing: TracingDefaults | None = Field(
        None, description="Traces of rollouts where a run has no tracing block. Off without an endpoint."
    )
    dns: DNS | None = Field(
        None,
        description="Name servers. By default those of kube-system (kube-dns, CoreDNS, NodeLocal DNSCache) and "
        "openshift-dns.",
    )


class AppliedDefaults(RunDefaults):
    """What a run is made with: those of cluster and namespace, and what the namespace's quotas ask for."""

    required_limits: list[str] = Field(
        default_factory=list,
        max_length=8,
        description="Resources, such as cpu and memory, of which each container must have a limit, since a "
        "ResourceQuota of the namespace counts limits.",
    )

    def pod_template(self, role: str) -> dict[str, Any]:
        """Returns the partial pod template for the pods of a role, to be merged below the run's own."""
        own = getattr(self.roles, role.removesuffix("-worker"))
        fields = merge(_pod_fields(self), _pod_fields(own))
        if self.image_pull_secrets:
            fields["imagePullSecrets"] = [_dumped(secret) for secret in self.image_pull_secrets]
        return {"spec": fields} if fields else {}

    def main_resources(self, role: str) -> dict[str, Any] | None:
        """Returns the resources of a role's main container where the run sets none; None if these don't either."""
        own = getattr(self.roles, role.removesuffix("-worker"), None)
        return own.resources if isinstance(own, RoleDefaults) else None


def parse(document: Mapping[str, Any], where: str) -> RunDefaults:
    """Returns typed defaults. `where` is the name of the document's root, for messages.

    Raises:
        InvalidDefaultsError: a key isn't known, or its value doesn't fit.
    """
    return _parsed(document, where, extra="forbid")


def parse_stored(document: Mapping[str, Any], where: str) -> RunDefaults:
    """Returns the same of an object that the API server has checked, and whose unknown keys are of a later release.

    Raises:
        InvalidDefaultsError: a value doesn't fit.
    """
    return _parsed(document, where, extra="ignore")


def _parsed(document: Mapping[str, Any], where: str, extra: Literal["forbid", "ignore"]) -> RunDefaults:
    try:
        return RunDefaults.model_validate(dict(document), extra=extra)
    except ValidationError as error:
        lines = (".".join([where, *map(str, one["loc"])]) + ": " + one["msg"] for one in error.errors())
        raise InvalidDefaultsError("; ".join(lines)) from error


def resolve(levels: Iterable[RunDefaults], required_limits: Iterable[str] = ()) -> AppliedDefaults:
    """Returns the defaults of all levels as one; a later level wins."""
    merged: dict[str, Any] = {}
    for level in levels:
        merged = merge(merged, _dumped(level))
    return AppliedDefaults.model_validate(merged | {"requiredLimits": sorted(set(required_limits))})


def with_defaults(spec: GymTrainingRunSpec, defaults: AppliedDefaults) -> GymTrainingRunSpec:
    """Returns the spec with those of its own fields filled in that it leaves open and the defaults don't: what the run
    becomes, for people. Its pods aren't made from this one: what decides when they are replaced is the author's."""
    wire: dict[str, Any] = {}
    if spec.ttl_seconds_after_finished is None and defaults.ttl_seconds_after_finished is not None:
        wire["ttl_seconds_after_finished"] = defaults.ttl_seconds_after_finished
    if spec.tracing is None and (tracing := tracing_of(spec, defaults)) is not None:
        wire["tracing"] = tracing
    if storage_class := defaults.storage_class_name:
        volumes = (
            ("model", "storage"),
            ("data", "storage"),
            ("trainer", "checkpoint"),
            ("inference", "compile_cache"),
        )
        for block, field in volumes:
            volume = getattr(getattr(spec, block), field)
            if volume and volume.size and volume.storage_class_name is None:
                filled = volume.model_copy(update={"storage_class_name": storage_class})
                wire[block] = wire.get(block, getattr(spec, block)).model_copy(update={field: filled})
    if defaults.gpu_resource_name is not None:
        for block in ("inference", "trainer"):
            part = wire.get(block, getattr(spec, block))
            if part.gpus and part.gpu_resource_name is None:
                wire[block] = part.model_copy(update={"gpu_resource_name": defaults.gpu_resource_name})
    return sandboxes_with_defaults(spec.model_copy(update=wire) if wire else spec, defaults)


def tracing_of(spec: GymTrainingRunSpec, defaults: AppliedDefaults) -> Tracing | None:
    """Returns where the run's traces go: as it says itself, else as the defaults say; None where it has none."""
    own, default = spec.tracing, defaults.tracing
    if own is None and default is not None and default.endpoint is not None:
        own = Tracing.model_validate(_dumped(default))
    return own if own is not None and own.sampling_rate_per_million else None


def sandboxes_with_defaults(spec: GymTrainingRunSpec, defaults: AppliedDefaults) -> GymTrainingRunSpec:
    """Returns the spec as the broker is to read it, which makes the sandboxes by it."""
    if spec.sandboxes is None:
        return spec
    filled = _filled(spec.sandboxes, defaults)
    return spec if filled is spec.sandboxes else spec.model_copy(update={"sandboxes": filled})


def _filled(sandboxes: Sandboxes, defaults: AppliedDefaults) -> Sandboxes:
    patch = defaults.pod_template("sandbox").get("spec", {})
    runtime_class = patch.pop("runtimeClassName", None)
    secrets = {secret["name"] for secret in patch.pop("imagePullSecrets", [])}
    own = {secret.name for secret in sandboxes.image_pull_secrets}
    wire: dict[str, Any] = {}
    if patch:
        wire["template"] = merge({"spec": patch}, sandboxes.template or {})
    if runtime_class and sandboxes.runtime_class_name is None:
        wire["runtimeClassName"] = runtime_class
    if secrets - own:
        named = [secret.model_dump() for secret in sandboxes.image_pull_secrets]
        wire["imagePullSecrets"] = [*named, *({"name": name} for name in sorted(secrets - own))]
    limits = {name: _SANDBOX_LIMITS[name] for name in defaults.required_limits if name in _SANDBOX_LIMITS}
    if limits:
        wire["resources"] = merge({"limits": limits}, sandboxes.resources or {})
    if not wire:
        return sandboxes
    return Sandboxes.model_validate(sandboxes.model_dump(by_alias=True) | wire)


def _pod_fields(defaults: PodDefaults) -> dict[str, Any]:
    dumped = _dumped(defaults)
    return {key: dumped[key] for key in ("nodeSelector", "tolerations", "runtimeClassName") if dumped.get(key)}


def _dumped(part: BaseModel) -> dict[str, Any]:
    """Returns what a part sets, by wire names."""
    return part.model_dump(mode="json", by_alias=True)
