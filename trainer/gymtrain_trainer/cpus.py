"""How many threads torch should use: what the container may use, not what the machine has."""

import math
import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(limit_file: Path = _CGROUP_LIMIT) -> int:
    """Whole CPUs of this container: its affinity, cut by the cgroup's CPU limit (`QUOTA PERIOD` or `max PERIOD`)."""
    cpus = os.process_cpu_count() or 1
    try:
        quota, period = limit_file.read_text().split()
        if quota != "max":
            cpus = min(cpus, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cpus)


def set_thread_count(processes: int) -> None:
    """Sets OMP_NUM_THREADS for this process and its children, unless the pod's environment does. Before torch loads."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // processes)))
