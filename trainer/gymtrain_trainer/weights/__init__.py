"""Weight sync: from the trainer's tensors to every vLLM pod of the run.

`make_transport` finds out which of the transports fits the servers; `protocol.WeightTransport` is what they all meet.
Nothing here imports torch before tensors arrive.
"""

from gymtrain_trainer.weights.errors import (
    NoServersError,
    StagingError,
    TransportRefusedError,
    WeightParityError,
    WeightsError,
    WeightSyncError,
)
from gymtrain_trainer.weights.parity.check import ParityCheck, model_logprobs
from gymtrain_trainer.weights.parity.watch import ParityResult, ParityWatch
from gymtrain_trainer.weights.pods.client import VllmPod
from gymtrain_trainer.weights.pods.probe import ServerReport, probe_servers, wait_for_servers
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent, SyncStats
from gymtrain_trainer.weights.store.weight_store import WeightStore, weight_routes
from gymtrain_trainer.weights.transports.choice import ADAPTER_FOLDER, TransportNeeds, make_transport
from gymtrain_trainer.weights.transports.chosen import ChosenTransport
from gymtrain_trainer.weights.transports.http_full import HTTPFull
from gymtrain_trainer.weights.transports.lora_filesystem import LoRAFilesystem
from gymtrain_trainer.weights.transports.nccl.transport import NCCL
from gymtrain_trainer.weights.transports.none import NoTransport
from gymtrain_trainer.weights.transports.protocol import WeightTransport
from gymtrain_trainer.weights.version_numbers import foreign_weights

__all__ = [
    "ADAPTER_FOLDER",
    "NCCL",
    "ChosenTransport",
    "HTTPFull",
    "LoRAFilesystem",
    "NoServersError",
    "NoTransport",
    "ParityCheck",
    "ParityResult",
    "ParityWatch",
    "ServerReport",
    "StagingError",
    "SyncEvent",
    "SyncSettings",
    "SyncStats",
    "TransportNeeds",
    "TransportRefusedError",
    "VllmPod",
    "WeightParityError",
    "WeightStore",
    "WeightSyncError",
    "WeightTransport",
    "WeightsError",
    "foreign_weights",
    "make_transport",
    "model_logprobs",
    "probe_servers",
    "wait_for_servers",
    "weight_routes",
]
