"""Entry point in vLLM's group `vllm.general_plugins`: every process of vLLM calls `register`, some more than once."""

from gymtrain_api.transports import PULL_BACKEND


def register() -> None:
    """Adds the engine to vLLM's factory. The engine's module is imported only where an engine is made."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # The registry has no public question "is it there?"; asking twice is an error that says so.
    try:
        WeightTransferEngineFactory.register_engine(PULL_BACKEND, "gymtrain_vllm.engine", "PullEngine")
    except ValueError as error:
        if "already registered" not in str(error):
            raise
