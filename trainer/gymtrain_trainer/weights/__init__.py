"""Weight sync: from the trainer's tensors to every vLLM pod of the run.

`HTTPFull` is the transport; the rest is what it is made of. Nothing here imports torch before tensors arrive.
"""

from gymtrain_trainer.weights.errors import (
    NoServersError,
    StagingError,
    TransportRefusedError,
    WeightParityError,
    WeightsError,
    WeightSyncError,
)
from gymtrain_trainer.weights.hosts import Pod
from gymtrain_trainer.weights.httpfull import HTTPFull
from gymtrain_trainer.weights.parity import ParityCheck, model_logprobs
from gymtrain_trainer.weights.probe import ServerReport, probe_servers, wait_for_servers
from gymtrain_trainer.weights.routes import weight_routes
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent, SyncStats
from gymtrain_trainer.weights.store import WeightStore
from gymtrain_trainer.weights.versions import untrusted

__all__ = [
    "HTTPFull",
    "NoServersError",
    "ParityCheck",
    "Pod",
    "ServerReport",
    "StagingError",
    "SyncEvent",
    "SyncSettings",
    "SyncStats",
    "TransportRefusedError",
    "WeightParityError",
    "WeightStore",
    "WeightSyncError",
    "WeightsError",
    "model_logprobs",
    "probe_servers",
    "untrusted",
    "wait_for_servers",
    "weight_routes",
]
