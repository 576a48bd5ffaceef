"""One of several processes that gather sharded tensors: `python -m tests.unit.trainer.trainer_gathering FOLDER`.

With torchrun's environment. Each rank leaves in FOLDER/RANK.json how many collectives it took and what came out
otherwise than by torch's own way.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from gymtrain_trainer.trl.gathering import gathered

SHAPES = {
    "matrix": (8, 3),
    "uneven": (7, 5),
    "fewer rows than ranks": (1, 4),
    "vector": (9,),
    "experts": (4, 2, 3),
    "large": (64, 64),
    "last": (6, 2),
}
BUCKET_BYTES = 512


def tensors() -> dict[str, Any]:
    """The same on each rank: sharded by rows, but for some."""
    generator = torch.Generator().manual_seed(5)
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    made: dict[str, Any] = {
        name: distribute_tensor(torch.randn(shape, generator=generator), line, [Shard(0)])
        for name, shape in SHAPES.items()
    }
    made["numbers"] = distribute_tensor(torch.arange(12), line, [Shard(0)])
    made["by columns"] = distribute_tensor(torch.randn((2, 8), generator=generator), line, [Shard(1)])
    made["everywhere"] = distribute_tensor(torch.randn((2, 2), generator=generator), line, [Replicate()])
    made["plain"] = torch.randn((3, 3), generator=generator)
    made["after plain"] = distribute_tensor(torch.randn((8, 2), generator=generator), line, [Shard(0)])
    grid = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    made["replicated shards"] = distribute_tensor(
        torch.randn((6, 2), generator=generator), grid, [Replicate(), Shard(0)]
    )
    return made


def main(folder: Path) -> None:
    """Gathers them whole, and as bfloat16."""
    dist.init_process_group("gloo")
    made, collectives = tensors(), 0
    collective = dist.all_gather_single

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal collectives
        collectives += 1
        return collective(*args, **kwargs)

    dist.all_gather_single = counted
    wrong = []
    for dtype in (None, torch.bfloat16):
        found = list(gathered(made.items(), torch.device("cpu"), dtype, BUCKET_BYTES))
        wrong += [f"order {dtype}"] if [name for name, _ in found] != list(made) else []
        for name, tensor in found:
            wanted = made[name].full_tensor() if hasattr(made[name], "full_tensor") else made[name]
            sharded = name not in ("by columns", "everywhere", "plain")
            if dtype is not None and wanted.is_floating_point() and sharded:
                wanted = wanted.to(dtype)
            if wanted.dtype != tensor.dtype or not torch.equal(wanted, tensor):
                wrong.append(f"{name} {dtype}")
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps({"wrong": wrong, "collectives": collectives}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
