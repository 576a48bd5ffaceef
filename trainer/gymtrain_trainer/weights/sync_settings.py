"""What weight sync has to know of the run."""

from dataclasses import dataclass

from gymtrain_api.manifest import MANIFEST_FILE
from gymtrain_api.weight_version import WeightVersion
from gymtrain_api.wiring import INFERENCE_PORT


@dataclass(frozen=True)
class SyncSettings:
    """Settings of all syncs of one attempt."""

    run: str
    attempt: int
    pods_host: str  # headless Service: one address per vLLM pod, ready or not
    weights_url: str  # base URL of `weight_routes`, as the vLLM pods reach it
    timeout_seconds: float = 600.0  # of one sync
    pods_port: int = INFERENCE_PORT
    repair_seconds: float = 2.0  # period of the repair watcher

    def version(self, number: int) -> str:
        """Label of sync `number` of this attempt."""
        return str(WeightVersion(self.run, self.attempt, number))

    def manifest_url(self, number: int) -> str:
        """Where vLLM finds sync `number`."""
        return f"{self.weights_url.rstrip('/')}/{number}/{MANIFEST_FILE}"
