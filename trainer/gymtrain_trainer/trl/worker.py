"""Our rollouts as TRL takes them: its RolloutWorkerProtocol, and its own class for a sample."""

from typing import Any

import numpy as np

from gymtrain_trainer.framework import Rollouts, SampleQueue, TrainingSample
from gymtrain_trainer.trl import internals


class TRLWorker:
    """TRL's `RolloutWorkerProtocol`; TRL calls it from the main thread of rank 0."""

    def __init__(self, rollouts: Rollouts) -> None:
        """`rollouts`: where the samples come from."""
        self._rollouts = rollouts
        self.rollout_buffer = TRLSamples(rollouts.buffer)
        self.metrics_queue = rollouts.metrics

    def start(self) -> None:
        """After TRL's first weight sync."""
        self._rollouts.start()

    def stop(self) -> None:
        """Training is over."""
        self._rollouts.stop()

    def update_model_version(self, model_version: int) -> None:
        """After each weight sync."""
        self._rollouts.update_model_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """While TRL waits for a sample. `stale_after_s`: TRL's setting; the run has one of its own."""
        self._rollouts.check_health()


class TRLSamples:
    """The buffer's samples as TRL's, made when TRL takes them."""

    def __init__(self, buffer: SampleQueue) -> None:
        self._buffer = buffer
        self._sample = internals.rollout_sample()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample; raises queue.Empty."""
        return self._made(self._buffer.get(block, timeout))

    def qsize(self) -> int:
        """Samples that wait."""
        return self._buffer.qsize()

    def _made(self, sample: TrainingSample) -> Any:
        return self._sample(
            prompt=[],
            completion=[],
            input_ids=np.asarray(sample.token_ids, dtype=np.int64),
            completion_mask=np.asarray(sample.mask, dtype=np.int64),
            old_log_probs=np.asarray(sample.log_probs, dtype=np.float32),
            advantage=sample.advantage,
            model_version=sample.version,
            group_id=sample.group_id,
            metrics={
                "reward": sample.reward,
                "reward_std": sample.reward_deviation,
                f"rewards/{sample.agent}": sample.reward,
                "completions/truncated_frac": float(sample.truncated),
            },
        )
