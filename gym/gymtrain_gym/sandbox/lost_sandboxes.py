"""Records which request lost a sandbox, even if its server hides the error.

Agents turn any error into reward 0: mini_swe_agent_2 does in its `run`, others show it to the model. The provider notes
here what it raises; `answers.LossMask` marks the answer. The request is known by a context variable: tasks,
`asyncio.to_thread`, NeMo Gym's blocking Sandbox and the threads of `ray_modes` take it along. A loss in a thread that
doesn't counts forevery request that is under way: a rollout too many is drawn again.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

type Losses = list[str]

_own: ContextVar[Losses | None] = ContextVar("losses", default=None)
_lock = threading.Lock()
_under_way: dict[int, Losses] = {}


@contextmanager
def collecting() -> Iterator[Losses]:
    """Collects messages about the sandboxes that are lost in the block."""
    losses: Losses = []
    token = _own.set(losses)
    with _lock:
        _under_way[id(losses)] = losses
    try:
        yield losses
    finally:
        with _lock:
            del _under_way[id(losses)]
        _own.reset(token)


@contextmanager
def noted(*kinds: type[Exception]) -> Iterator[None]:
    """Notes errors of these kinds as losses."""
    try:
        yield
    except kinds as error:
        own = _own.get()
        with _lock:
            for losses in _under_way.values() if own is None else [own]:
                losses.append(str(error))
        raise
