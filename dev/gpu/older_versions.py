"""What GPU machines with an older Python and torch than the images' lack, so that measurements run there."""

import inspect
import os
from typing import Any


def allow_older_python() -> None:
    """Python before 3.13 has no `os.process_cpu_count`."""
    if not hasattr(os, "process_cpu_count"):
        setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010 - its type knows 3.13 only


def allow_older_torchrun(module: str) -> None:
    """torch 2.11's torchrun has no `--shutdown-timeout`. Its processes then run `module`, in which they can be allowed
    for as in this one."""
    from torch.distributed.run import get_args_parser

    from gymtrain_trainer.trl import framework

    if "--shutdown" in get_args_parser().format_help():
        return
    made = getattr(framework, "torchrun_arguments")  # noqa: B009 - it is only imported there

    def arguments(context: Any) -> list[str]:
        *known, _ = [one for one in made(context) if not one.startswith("--shutdown-timeout")]
        return [*known, module]

    setattr(framework, "torchrun_arguments", arguments)  # noqa: B010 - as above


def allow_older_torch() -> None:
    """torch before 2.12 has no `enable_gqa` at its varlen kernel: heads are repeated there, which takes memory. And it
    has `all_gather_single` under its old name."""
    import torch.distributed as dist
    import torch.nn.attention.varlen as varlen

    if not hasattr(dist, "all_gather_single"):
        setattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # noqa: B010 - its type knows newer ones only
    kernel = varlen.varlen_attn
    if "enable_gqa" in inspect.signature(kernel).parameters:
        return

    def repeated(query: Any, key: Any, value: Any, *rest: Any, enable_gqa: bool = False, **more: Any) -> Any:
        if enable_gqa:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        return kernel(query, key, value, *rest, **more)

    varlen.varlen_attn = repeated
