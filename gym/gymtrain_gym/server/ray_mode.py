"""Ray in a server pod: none where the server's code doesn't use it, a small local one where it does.

Upstream starts or joins a Ray cluster in every server, which costs 12 s, 17 processes and 600 MB a pod, and no
setting turns it off. `initialize_ray` is looked up in nemo_gym.server_utils when a server starts, so it is
replaced there.
"""

import math
import os
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 128 * 2**20
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: "QUOTA PERIOD" in µs, or "max PERIOD"
MAX_CPUS_WITHOUT_LIMIT = 4


def without_ray() -> None:
    """Keeps NeMo Gym from starting Ray."""
    _replace(lambda: None)


def local_ray(folder: Path) -> None:
    """Makes NeMo Gym start a Ray of this pod alone, with files below `folder`."""

    def start() -> None:
        import ray

        if ray.is_initialized():
            return
        options: dict[str, Any] = {
            "num_cpus": cpus(),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_temp_dir": str(folder),
            "ignore_reinit_error": True,
        }
        # A pod's /dev/shm holds 64 MiB by default, less than the object store.
        ray.init(**options, _plasma_directory=str(folder))

    folder.mkdir(parents=True, exist_ok=True)
    _replace(start)


def cpus(quota_file: Path = CPU_QUOTA_FILE) -> int:
    """CPUs that this container may use: its limit, or a few where it has none."""
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return min(MAX_CPUS_WITHOUT_LIMIT, os.process_cpu_count() or 1)


def _replace(start: Any) -> None:
    import nemo_gym.server_utils

    nemo_gym.server_utils.initialize_ray = start
