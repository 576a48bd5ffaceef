"""The whole `spec`."""

from pydantic import Field

from gymtrain_api.resume import RESUME_PATTERN, ResumeFrom
from gymtrain_api.spec.base import Spec
from gymtrain_api.spec.data import Data
from gymtrain_api.spec.evaluation import Evaluation
from gymtrain_api.spec.gym import Gym
from gymtrain_api.spec.model import Model
from gymtrain_api.spec.sandboxes import Sandboxes
from gymtrain_api.spec.tracing import Tracing
from gymtrain_api.spec.training import Gateway, Inference, Rollout, Trainer, WeightSync


class GymTrainingRunSpec(Spec):
    """What to train, on which data, with which servers."""

    suspend: bool = Field(
        False, description="true stops the run and frees its pods. false resumes from the last checkpoint."
    )
    model: Model = Field(description="The policy model to train.")
    gym: Gym = Field(description="The NeMo Gym servers.")
    data: Data = Field(default_factory=Data, description="The datasets.")
    inference: Inference = Field(default_factory=Inference, description="The vLLM servers.")
    trainer: Trainer = Field(default_factory=Trainer, description="The training Job.")
    rollout: Rollout = Field(default_factory=Rollout, description="How rollouts are collected.")
    evaluation: Evaluation | None = Field(
        None, description="When and how the policy is evaluated on data.validation. Defaults apply without the block."
    )
    gateway: Gateway = Field(default_factory=Gateway, description="The gateway in front of vLLM.")
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="How weights reach vLLM.")
    sandboxes: Sandboxes | None = Field(
        None, description="One pod per task in which agents run commands, for environments that need it."
    )
    tracing: Tracing | None = Field(
        None, description="Traces of rollouts through all parts of the run. Off without the block."
    )
    resume_from: str | None = Field(
        None,
        pattern=RESUME_PATTERN,
        max_length=128,
        description="Checkpoint folder of an earlier run to resume from: NAME for the run's newest whole checkpoint, "
        "NAME/checkpoint-STEP for one checkpoint, NAME/best for the one that evaluation.keepBest kept, NAME/previous-N "
        "for checkpoints that were set aside. The folder is "
        "on trainer.checkpoint.claimName, or, with size, on the volume that was kept from that run. The run resumes "
        "weights, optimizer with its learning rate, and step. It also resumes the position in the data if the data is "
        "the same; other data is drawn from its start. max_steps counts from the earlier run's start. With its own "
        "name, the run continues in its own folder; another run's folder is read-only. Preflight refuses a checkpoint "
        "that doesn't exist.",
    )
    service_account_name: str | None = Field(
        None, description="ServiceAccount of all pods of the run, for image pull secrets. Pods don't get its token."
    )
    priority_class_name: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="PriorityClass of all pods of the run but its sandboxes. Pods of higher priority take the room of "
        "others if the cluster is full. What is lost that way doesn't count against backoffLimit. In a queue of Kueue "
        "it's also the run's priority there, unless the run has the label kueue.x-k8s.io/priority-class.",
    )
    startup_deadline_seconds: int = Field(
        1800,
        ge=10,
        le=86400,
        description="Time for the servers of an attempt to become ready before the run fails. In a run that has "
        "trained, it counts from when all pods have found room, so a full cluster never ends such a run.",
    )
    backoff_limit: int = Field(3, ge=0, le=1000, description="Attempts after the first before the run fails.")
    active_deadline_seconds: int | None = Field(
        None, ge=1, description="Time since the start, without suspended time, after which the run fails."
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Time after its end until the run is deleted, with everything that it owns."
    )

    @property
    def evaluates(self) -> Evaluation | None:
        """How the run is evaluated; None where it isn't."""
        return (self.evaluation or Evaluation()) if self.data.validation else None

    @property
    def evaluates_only(self) -> bool:
        """Whether nothing is trained."""
        return self.evaluation is not None and self.evaluation.without_training is not None

    @property
    def used_data(self) -> Data:
        """The datasets that are read."""
        return self.data.model_copy(update={"train": []}) if self.evaluates_only else self.data

    @property
    def reads_from(self) -> tuple[str, ResumeFrom] | None:
        """The run whose checkpoints are read, with the field that names it."""
        if self.resume_from is not None:
            return "spec.resumeFrom", ResumeFrom.parse(self.resume_from)
        without = self.evaluation.without_training if self.evaluation is not None else None
        if without is not None and without.checkpoints_of is not None:
            return "spec.evaluation.withoutTraining.checkpointsOf", ResumeFrom.parse(without.checkpoints_of)
        return None
