"""Entry point in vLLM's group `vllm.general_plugins`: every process of vLLM calls `register`, some more than once."""

from gymtrain_api.transports import PULL_BACKEND
from gymtrain_vllm.vllm_internals import is_registered_twice


def register() -> None:
    """Adds the engine to vLLM's factory. The engine's module is imported only where an engine is made."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine(PULL_BACKEND, "gymtrain_vllm.engine", "PullEngine")
    except ValueError as error:
        if not is_registered_twice(error):
            raise
