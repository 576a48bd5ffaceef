"""How many connections the kernel lets this process have."""

import resource
from dataclasses import dataclass

_RESERVE = 128  # files, sockets of probes


@dataclass(frozen=True)
class Limits:
    """Connections that may be open at once."""

    files: int
    upstream: int  # to vLLM pods

    def shortage(self, rollouts: int) -> str | None:
        """What to do if `rollouts` clients and their calls don't fit."""
        needed = rollouts + self.upstream + _RESERVE
        if needed <= self.files:
            return None
        return (
            f"RLIMIT_NOFILE is {self.files}, but {rollouts} open rollouts and {self.upstream} calls to vLLM need "
            f"{needed}: raise the container runtime's limit of open files (LimitNOFILE), add gateway replicas, or "
            "lower spec.rollout.maxConcurrent"
        )


def raise_files() -> int:
    """Takes all open files that the kernel grants this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def derive(files: int, rollouts: int) -> Limits:
    """Each rollout holds one connection to the gateway and at most one onward."""
    return Limits(files=files, upstream=max(16, min(rollouts, (files - _RESERVE) // 2)))
