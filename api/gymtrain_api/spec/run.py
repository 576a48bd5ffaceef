"""The whole `spec`."""

from pydantic import Field

from gymtrain_api.resume import RESUME_PATTERN
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
    resume_from: str | None = Field(
        None,
        pattern=RESUME_PATTERN,
        max_length=128,
        description="Checkpoint folder of an earlier run to go on from: its name, for its newest whole checkpoint, or "
        "NAME/checkpoint-STEP; NAME/previous-N for what was set aside there. It is looked for on "
        "trainer.checkpoint.claimName, or, with size, on the volume that was kept of that run. Weights, optimizer with "
        "its learning rate, and step go on, and where the data is the same, the place in it; other data is drawn from "
        "its start. max_steps counts from the earlier run's start. With its own name the run goes on in its own "
        "folder; another run's is read only. Preflight refuses a checkpoint that isn't there.",
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
