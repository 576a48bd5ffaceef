"""Weight sync: from the trainer's tensors to every vLLM pod of the run.

`WeightSync` (`sync.py`) is what TRL, the rollouts and the watchdog know of it. `transports/` holds the ways in which
weights leave the trainer, `pods/` who takes them, `store/` what HTTPFull offers on disk, `parity/` the check that both
sides compute the same. Nothing here imports torch before tensors arrive.
"""

from gymtrain_trainer.weights.errors import (
    NoServersError,
    StagingError,
    TransportRefusedError,
    WeightParityError,
    WeightsError,
    WeightSyncError,
)
from gymtrain_trainer.weights.parity.check import Completion, ParityCheck, model_logprobs
from gymtrain_trainer.weights.parity.watch import ParityResult, ParityWatch
from gymtrain_trainer.weights.pods.client import VllmPod
from gymtrain_trainer.weights.pods.probe import ServerReport, probe_servers, wait_for_servers
from gymtrain_trainer.weights.store.weight_store import WeightStore, weight_routes
from gymtrain_trainer.weights.sync import SyncEvent, SyncStats, WeightSync
from gymtrain_trainer.weights.sync_settings import SyncSettings
from gymtrain_trainer.weights.transports.choice import ADAPTER_FOLDER, TransportNeeds, choose_transport
from gymtrain_trainer.weights.transports.http_full import HTTPFull
from gymtrain_trainer.weights.transports.lora_filesystem import LoRAFilesystem
from gymtrain_trainer.weights.transports.nccl.transport import NCCL
from gymtrain_trainer.weights.transports.none import NoTransport
from gymtrain_trainer.weights.transports.transport import ChosenTransport, Transport
from gymtrain_trainer.weights.version_numbers import SyncNumberFile, SyncNumbers, foreign_weights

__all__ = [
    "ADAPTER_FOLDER",
    "NCCL",
    "ChosenTransport",
    "Completion",
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
    "SyncNumberFile",
    "SyncNumbers",
    "SyncSettings",
    "SyncStats",
    "Transport",
    "TransportNeeds",
    "TransportRefusedError",
    "VllmPod",
    "WeightParityError",
    "WeightStore",
    "WeightSync",
    "WeightSyncError",
    "WeightsError",
    "choose_transport",
    "foreign_weights",
    "model_logprobs",
    "probe_servers",
    "wait_for_servers",
    "weight_routes",
]
