"""What became of one sync, pod by pod."""

from dataclasses import dataclass, field

from gymtrain_trainer.weights.errors import NoServersError, WeightSyncError
from gymtrain_trainer.weights.pods.hosts import VllmPod
from gymtrain_trainer.weights.settings import SyncSettings


@dataclass
class Outcome:
    """What became of one sync."""

    done: dict[VllmPod, float] = field(default_factory=dict)  # seconds of the pause
    unreachable: dict[VllmPod, str] = field(default_factory=dict)
    refused: dict[VllmPod, str] = field(default_factory=dict)
    retries: int = 0


def too_late(outcome: Outcome, pods: list[VllmPod], seconds: float, settings: SyncSettings) -> Exception:
    """Why it was not done before the deadline."""
    if outcome.refused:
        return WeightSyncError(f"not done in {seconds:.0f} s: {'; '.join(sorted(outcome.refused.values()))}")
    seen = "; ".join(sorted(outcome.unreachable[pod] for pod in pods if pod in outcome.unreachable))
    return NoServersError(
        f"no vLLM pod took the weights in {seconds:.0f} s: {seen or f'{settings.pods_host} has no address'}"
    )
