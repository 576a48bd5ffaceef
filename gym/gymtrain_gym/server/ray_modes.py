"""How a server pod has Ray: not at all, replaced by threads, or as a small cluster of its own.

| the server's code | Ray in its pod |
|---|---|
| doesn't use Ray | none: upstream starts or joins a cluster in every server, 12 s, 17 processes and 600 MB a pod |
| waits in Ray's workers for something elsewhere (THREADED) | threads of the server itself |
| computes with Ray | a cluster of this pod alone |

An agent of the second kind spends its time on answers of the model and on commands in a sandbox. Ray would give each
rollout a process, count a CPU for it, and add its own processes to the pod: 16 s to start on an idle node, and an error
on a node where that takes more than 30 s.
"""

import asyncio
import contextlib
import contextvars
import math
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any
from weakref import WeakSet

from gymtrain_gym import nemo_gym_internals

THREADED = frozenset({"mini_swe_agent_2"})  # implementations of servers
OBJECT_STORE_BYTES = 128 * 2**20
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: "QUOTA PERIOD" in µs, or "max PERIOD"
MAX_CPUS_WITHOUT_LIMIT = 4


def no_ray() -> None:
    """Keeps NeMo Gym from starting Ray."""
    nemo_gym_internals.replace_ray_start(lambda: None)


def threads() -> None:
    """Runs remote functions in threads of this process. To be called before the server's code is imported."""
    no_ray()
    nemo_gym_internals.replace_ray_functions(remote, get)


def local_cluster(folder: Path) -> None:
    """Makes NeMo Gym start a Ray of this pod alone, with its files below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    nemo_gym_internals.replace_ray_start(lambda: nemo_gym_internals.start_local_ray(cpus(), folder, OBJECT_STORE_BYTES))


def cpus(quota_file: Path = CPU_QUOTA_FILE) -> int:
    """CPUs that this container may use: its limit, or a few where it has none."""
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return min(MAX_CPUS_WITHOUT_LIMIT, os.process_cpu_count() or 1)


class Ref:
    """The result of a call that runs in a thread. Can be awaited, or waited for with `get`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        _running.add(self)
        # A daemon: what still runs when the server ends must not hold it up.
        work = contextvars.copy_context().run  # a thread starts with an empty one: lost_sandboxes asks whose it is
        threading.Thread(target=work, args=(self._run, call), name="rollout", daemon=True).start()

    def _run(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(InvalidStateError):  # abandoned meanwhile
            try:
                result = call()
            except BaseException as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.future).__await__()


_running: WeakSet[Ref] = WeakSet()


def abandon() -> None:
    """Ends all waiting for calls that still run: the server stops."""
    for ref in list(_running):
        with contextlib.suppress(InvalidStateError):
            ref.future.set_exception(RuntimeError("the server was stopped before the call ended"))


class RemoteFunction:
    """What `@ray.remote` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, type):
            raise TypeError(f"{function.__name__} is a Ray actor, and this server's Ray supports only functions")
        self._function = function

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        """Starts a call."""
        return Ref(lambda: self._function(*args, **kwargs))

    def options(self, **options: Any) -> "RemoteFunction":
        """Itself: resources and environments of processes mean nothing to threads."""
        return self


def remote(*args: Any, **options: Any) -> Any:
    """`@ray.remote` and `@ray.remote(num_cpus=1)`."""
    return RemoteFunction(args[0]) if args and not options else RemoteFunction


def get(refs: Ref | Sequence[Ref], *, timeout: float | None = None) -> Any:
    """`ray.get`."""
    return refs.future.result(timeout) if isinstance(refs, Ref) else [ref.future.result(timeout) for ref in refs]
