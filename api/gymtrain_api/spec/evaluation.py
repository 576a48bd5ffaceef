"""`spec.evaluation`: when and how the policy is evaluated on `data.validation`."""

from pydantic import Field

from gymtrain_api.resume import RESUME_PATTERN
from gymtrain_api.spec.base import DECIMAL_PATTERN, Spec


class WithoutTraining(Spec):
    """Nothing is trained: models are evaluated one after the other, and the run is complete."""

    checkpoints_of: str | None = Field(
        None,
        pattern=RESUME_PATTERN,
        max_length=128,
        description="Run whose checkpoints are evaluated, by step: NAME for all whole checkpoints of a run, "
        "NAME/checkpoint-STEP for one, NAME/best for the best, NAME/previous-N for checkpoints that were set aside. "
        "They are on trainer.checkpoint.claimName, or, with size, on the volume that was kept from that run. An "
        "adapter is merged into spec.model. Defaults to evaluating spec.model.",
    )


class Evaluation(Spec):
    """Evaluations of the policy on all tasks of data.validation. Each belongs to one weight version."""

    without_training: WithoutTraining | None = Field(
        None,
        description="Evaluates a model, or the checkpoints of another run, and trains nothing: data.train isn't read, "
        "and of trainer.config only max_completion_length and temperature count. Here {} evaluates spec.model.",
    )

    every_steps: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="Optimizer steps from one evaluation to the next: a multiple of trainer.config.weight_sync_steps. "
        "0: only at the start and at the end.",
    )
    at_start: bool = Field(True, description="Whether the model is evaluated before the first step.")
    at_end: bool = Field(True, description="Whether the weights of the last step are evaluated.")
    samples_per_task: int = Field(
        1, ge=1, le=64, description="Rollouts of each task, k of pass@k. More make the mean more exact, too."
    )
    max_tasks: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Evaluates at most this many tasks: the first ones of each dataset, in proportion to the datasets' "
        "rows. Defaults to all.",
    )
    temperature: str | None = Field(
        None,
        pattern=DECIMAL_PATTERN,
        max_length=16,
        description="Sampling temperature of evaluations (decimal): 0, which takes the likeliest token each time, or "
        "0.01 to 2. Defaults to the temperature of trainer.config.",
    )
    max_concurrent: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Maximum number of an evaluation's rollouts at the same time, beside those of the training. "
        "Defaults to rollout.maxConcurrent.",
    )
    timeout_seconds: int = Field(
        1800,
        ge=1,
        le=86400,
        description="Deadline of one evaluation. The next weight sync waits that long for it. Rollouts that have not "
        "ended by then count as failed.",
    )
    while_training: bool = Field(
        True,
        description="true: training rollouts go on beside an evaluation. false: none starts until it has ended.",
    )
    pass_reward: str = Field(
        "1",
        pattern=DECIMAL_PATTERN,
        max_length=16,
        description="Reward from which a rollout passes, for pass@k (decimal).",
    )
    keep_best: bool = Field(
        True,
        description="With trainer.checkpoint: each evaluated step saves a checkpoint, and the one with the highest "
        "mean reward stays in the folder best of the run's checkpoints.",
    )
