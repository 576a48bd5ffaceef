"""Our rollouts as TRL takes them: its RolloutWorkerProtocol. The groups go another way (batches.py)."""

from gymtrain_trainer.framework import Rollouts


class TRLWorker:
    """TRL's `RolloutWorkerProtocol`; TRL calls it from the main thread of rank 0."""

    def __init__(self, rollouts: Rollouts) -> None:
        """`rollouts`: where the groups come from."""
        self.rollouts = rollouts
        self.rollout_buffer = rollouts.buffer
        self.metrics_queue = rollouts.metrics

    def start(self) -> None:
        """After TRL's first weight sync."""
        self.rollouts.start()

    def stop(self) -> None:
        """Training is over."""
        self.rollouts.stop()

    def update_model_version(self, model_version: int) -> None:
        """After each weight sync."""
        self.rollouts.update_model_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """While TRL waits for a sample. `stale_after_s`: TRL's setting; the run has one of its own."""
        self.rollouts.check_health()
