"""The whole `spec`."""

from pydantic import Field

from gymtrain_api.spec.base import Spec
from gymtrain_api.spec.data import Data
from gymtrain_api.spec.gym import Gym
from gymtrain_api.spec.model import Model
from gymtrain_api.spec.sandboxes import Sandboxes
from gymtrain_api.spec.training import Gateway, Inference, Rollout, Trainer, WeightSync


class GymTrainingRunSpec(Spec):
    """What to train, on what, with which servers."""

    suspend: bool = Field(
        False, description="Stops the run and frees its pods; false resumes from the last checkpoint."
    )
    model: Model = Field(description="The policy model that is trained.")
    gym: Gym = Field(description="The NeMo Gym servers.")
    data: Data = Field(description="The datasets.")
    inference: Inference = Field(default_factory=Inference, description="The vLLM servers.")
    trainer: Trainer = Field(default_factory=Trainer, description="The training Job.")
    rollout: Rollout = Field(default_factory=Rollout, description="How rollouts are collected.")
    gateway: Gateway = Field(default_factory=Gateway, description="The gateway in front of vLLM.")
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="How weights reach vLLM.")
    sandboxes: Sandboxes | None = Field(
        None, description="A pod per task in which agents run commands, for environments that need one."
    )
    service_account_name: str | None = Field(
        None, description="ServiceAccount of all pods of the run, for image pull secrets. No pod gets its token."
    )
    startup_deadline_seconds: int = Field(
        1800,
        ge=10,
        le=86400,
        description="Time that the servers of an attempt may take to become ready before the run fails. In a run that "
        "has trained it counts from when all pods have found room: a full cluster never ends such a run.",
    )
    backoff_limit: int = Field(3, ge=0, le=1000, description="Attempts after the first before the run fails.")
    active_deadline_seconds: int | None = Field(
        None, ge=1, description="Time since the start, suspended time left out, after which the run fails."
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Time after the end at which the run is deleted, with all that it owns."
    )
