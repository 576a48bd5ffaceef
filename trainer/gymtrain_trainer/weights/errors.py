"""Errors of weight sync; each carries its exit code through the trainer's own tree.

WeightsError                     a new attempt may help
├── NoServersError               no vLLM pod answered before the deadline
├── StagingError                 the weights couldn't be written to disk
├── WeightSyncError              vLLM answered but didn't take the weights
├── TransportRefusedError        the vLLM servers lack what the transport needs (final)
└── WeightParityError            vLLM computes other log-probabilities than the trainer (final)

PodError                         one call to one pod; never leaves this package
├── PodUnreachableError          no connection, it broke, or the engine is dead: the pod starts, restarts or is gone
└── PodRefusedError              an HTTP error
"""

from gymtrain_trainer.errors import RefusedError, TrainerError


class WeightsError(TrainerError):
    """Base of what the trainer sees."""


class NoServersError(WeightsError):
    """No vLLM pod answered before the deadline."""


class StagingError(WeightsError):
    """The weights couldn't be written to disk."""


class WeightSyncError(WeightsError):
    """vLLM answered, but didn't take the weights."""


class TransportRefusedError(WeightsError, RefusedError):
    """No transport works with these vLLM servers; the message names what is missing."""


class WeightParityError(WeightsError, RefusedError):
    """After a sync vLLM's log-probabilities are not the trainer's: training on its samples would be wrong."""


class PodError(Exception):
    """One call to one pod failed."""


class PodUnreachableError(PodError):
    """No connection, it broke, or the engine is dead."""


class PodRefusedError(PodError):
    """An HTTP error; the text is the server's."""

    def __init__(self, call: str, status: int, text: str) -> None:
        super().__init__(f"{call}: HTTP {status}: {text}")
        self.status = status
        self.text = text
