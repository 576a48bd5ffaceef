"""`status` of a GymTrainingRun. Each reconcile computes it from the plan once, and writes it once."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from gymtrain_api.defaults import AppliedDefaults

MAX_DISRUPTED_ATTEMPTS = 100
"""Further disruptions count against backoffLimit, so a run that keeps losing its pods ends eventually."""

MAX_LOST_ROLLOUTS = 20
"""Entries of status.progress.lostRollouts; the metrics have all."""


type Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class Status(BaseModel):
    """Base class of all parts of the status. Ignores unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Condition(Status):
    """A condition, like metav1.Condition."""

    type: str = Field(max_length=64, description="Type of the condition, unique in the list.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(description="Reason of the status, a constant for programs.")
    message: str = Field("", description="What happened and what to do, for people.")
    last_transition_time: Time = Field(description="When status last changed (RFC 3339).")
    observed_generation: int | None = Field(None, description="Generation of the spec that the condition is about.")


class LostRollouts(Status):
    """Rollouts of one environment that failed for good in one way."""

    environment: str = Field(description="Agent server of the rows.")
    kind: str = Field(
        description="Kind of failure, as in spec.rollout.onFailure: infrastructure, timeout or environment."
    )
    rollouts: int = Field(description="How many were dropped from their group, or counted with reward 0.")


class Progress(Status):
    """How far training is, as the trainer last reported it."""

    step: int = Field(0, description="Optimizer steps done.")
    max_steps: int | None = Field(None, description="Optimizer steps to do.")
    reward: str | None = Field(None, description="Mean reward of the last step (decimal).")
    tokens_per_second: str | None = Field(None, description="Completion tokens per second (decimal).")
    validation_reward: str | None = Field(
        None, description="Mean reward of the last evaluation on data.validation (decimal)."
    )
    validation_step: int | None = Field(None, description="Step whose weights that evaluation is of.")
    best_validation_reward: str | None = Field(
        None, description="Highest mean reward of all evaluations so far (decimal)."
    )
    best_step: int | None = Field(None, description="Step of that evaluation; 0 is the model before training.")
    rollouts: int | None = Field(None, description="Rollouts completed in this attempt.")
    failed_rollouts: int | None = Field(None, description="Rollout tries that failed in this attempt.")
    lost_rollouts: list[LostRollouts] | None = Field(
        None,
        max_length=MAX_LOST_ROLLOUTS,
        description="Rollouts that failed for good in this attempt, by environment and kind of failure; those with the "
        "most rollouts first.",
    )
    dropped_groups: int | None = Field(
        None,
        description="Groups dropped in this attempt, such as because too few rollouts were left of them, or because "
        "other weights than the run's sampled them.",
    )
    parity: str | None = Field(
        None,
        description="Mean difference between the trainer's and vLLM's log-probabilities, when last checked (decimal).",
    )
    last_update_time: Time | None = Field(None, description="When the trainer last reported (RFC 3339).")


type ServerKind = Literal["agent", "resources", "model", "head", "gateway", "broker", "inference"]


class ServerStatus(Status):
    """One server of the run."""

    name: str = Field(description="Name in the Gym config, or gateway, broker or inference.")
    kind: ServerKind = Field(description="Kind of server.")
    url: str = Field(description="URL inside the cluster.")
    ready: str = Field(description="Ready and wanted pods, such as 2/2.")


class InferenceStatus(Status):
    """The vLLM servers as an autoscaler sees them: the subresource scale reads these fields."""

    replicas: int = Field(
        0,
        description="vLLM servers that there are, ready or not: their pods, or groups of pods where "
        "spec.inference.nodes is above 1. 0 while the run is suspended or queued, and after its end.",
    )
    selector: str = Field(
        description="Label selector of the servers' pods, in the query form (a=b,c=d). Of a group, that is its first "
        "pod."
    )


class WeightSyncStatus(Status):
    """The transport in use."""

    transport: str = Field(description="The chosen transport.")
    reason: str = Field("", description="Why it was chosen.")
    missing: list[str] | None = Field(
        None,
        max_length=16,
        description="What the other transports lack with these servers.",
    )
    version: str | None = Field(None, description="Weight version that the servers hold: run:attempt:step.")


class Images(Status):
    """The images of one release that the run's pods use. A missing one was not known."""

    gym: str | None = Field(
        None, description="Image for preflight's Gym check, Gym servers without their own image, and datasets."
    )
    trainer: str | None = Field(
        None, description="Image for preflight's trainer check, the trainer, and the model's download."
    )
    gateway: str | None = Field(None, description="Image of the gateway.")
    inference: str | None = Field(None, description="Image of vLLM.")
    broker: str | None = Field(None, description="Image of the sandbox broker.")
    sandbox: str | None = Field(None, description="Image with the daemon in every sandbox.")


class GymTrainingRunStatus(Status):
    """What the operator observed."""

    observed_generation: int | None = Field(None, description="Generation of the spec that this status is about.")
    state: str | None = Field(
        None,
        description="One word for kubectl get, derived from the conditions. For people; programs read conditions.",
    )
    attempt: int | None = Field(None, description="Current attempt, from 1.")
    start_time: Time | None = Field(None, description="When the operator first saw the run (RFC 3339).")
    completion_time: Time | None = Field(None, description="When the run ended (RFC 3339).")
    suspended_seconds: int | None = Field(
        None,
        description="Time spent suspended or waiting in a queue of Kueue, which doesn't count for "
        "activeDeadlineSeconds.",
    )
    disrupted_attempts: list[int] = Field(
        default_factory=list,
        max_length=MAX_DISRUPTED_ATTEMPTS,
        description="Attempts that the cluster ended (eviction, preemption, node shutdown), or that lost their "
        "servers to a full cluster. They don't count against backoffLimit.",
    )
    preflight_hash: str | None = Field(None, description="Hash of the inputs that passed preflight.")
    images: Images | None = Field(
        None,
        description="Images that preflight used. All pods of the run use them until its end, even if the operator's "
        "defaults change.",
    )
    # Its fields are in the CRD once, as those of GymTrainingDefaults.
    defaults: Annotated[AppliedDefaults, WithJsonSchema({"type": "object", "additionalProperties": True})] | None = (
        Field(
            None,
            description="Defaults of cluster and namespace that the run is made with, with the fields of "
            "GymTrainingDefaults, and requiredLimits: resources of which each container gets a limit, since a "
            "ResourceQuota counts them. Once preflight has passed they stay, even if those of cluster and namespace "
            "change.",
        )
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Conditions, one of each type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    inference: InferenceStatus | None = Field(None, description="The vLLM servers, as the subresource scale has them.")
    weight_sync: WeightSyncStatus | None = Field(None, description="The weight transport in use.")
    progress: Progress | None = Field(None, description="How far training is.")
    servers: list[ServerStatus] = Field(
        default_factory=list,
        description="The servers of the run.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["kind", "name"]},
    )

    def condition(self, kind: str) -> Condition | None:
        """Returns the condition of that type, or None."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of that type is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"
