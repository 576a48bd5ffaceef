"""Ray's remote functions in threads of the server itself, for agents that use Ray only to wait elsewhere.

Such an agent spends its time on answers of the model and on commands in a sandbox. Ray would give each rollout a
process, count a CPU for it, and add its own processes to the pod: 16 s to start on an idle node, and an error on a node
where that takes more than 30 s.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any
from weakref import WeakSet

IMPLEMENTATIONS = frozenset({"mini_swe_agent_2"})


class Ref:
    """The result of a call that runs in a thread. Can be awaited, or waited for with `get`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        _running.add(self)
        # A daemon: what still runs when the server ends must not hold it up.
        work = contextvars.copy_context().run  # a thread starts with an empty one: `losses` asks whose it is
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
    """The server stops: nobody waits any longer for calls that still run."""
    for ref in list(_running):
        with contextlib.suppress(InvalidStateError):
            ref.future.set_exception(RuntimeError("the server was stopped before the call ended"))


class RemoteFunction:
    """What `@ray.remote` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, type):
            raise TypeError(f"{function.__name__} is an actor of Ray, and this server's Ray has functions only")
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


def install() -> None:
    """Puts both in Ray's place, before the server's code is read."""
    import ray

    ray.remote, ray.get = remote, get
