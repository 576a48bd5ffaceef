"""How many connections the kernel lets the trainer's process have.

As gateway/gymtrain_gateway/main.py, which the trainer can't import; the interface package, which both can,
does no I/O. The rules differ, too: a gateway that is short of connections holds calls back, the trainer begins fewer
rollouts.
"""

import resource

_RESERVE = 512  # the trainer's own: libraries, checkpoints, vLLM and gateway pods, weights that are fetched
_EACH = 2  # of one rollout: the connection that it uses, and one of an earlier rollout that waits to be used again


def raise_files() -> int:
    """Takes all open files that the kernel grants this process, and returns their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def rollouts_at_once(files: int, wanted: int) -> int:
    """How many of `wanted` rollouts fit into so many open files, at least 1."""
    return max(1, min(wanted, (files - _RESERVE) // _EACH))


def shortage(files: int, wanted: int) -> str | None:
    """What to do where not all of `wanted` rollouts fit; None if they do."""
    fit = rollouts_at_once(files, wanted)
    if fit == wanted:
        return None
    return (
        f"RLIMIT_NOFILE is {files}, but {wanted} rollouts at once (spec.rollout.maxConcurrent) need "
        f"{wanted * _EACH + _RESERVE} open files: {fit} run at once. Raise the container runtime's limit of open files "
        "(LimitNOFILE), or lower spec.rollout.maxConcurrent"
    )
