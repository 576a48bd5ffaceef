"""Ends the server when its engine is gone.

vLLM's API server is another process than its engine. Once the engine has ended it is to end too, but may stay: it waits
for requests that nobody answers any more, with a /health that says 503 or with no open port. Kubernetes restarts a
container as soon as its first process ends, and a server that only fails its liveness probe two minutes later.
"""

import os
import threading
import time
from collections.abc import Callable
from enum import Enum

from gymtrain_vllm import ready

_EVERY_SECONDS = 2.0
_TIMES = 5  # in a row: vLLM may end by itself meanwhile, and say more
_EXIT_ENGINE_GONE = 71
_PATIENCE_SECONDS = 10.0  # with an answer


class Health(Enum):
    """What /health says."""

    WELL = "it is well"
    GONE = "its engine is gone"
    UNKNOWN = "it doesn't answer"  # it starts, or is busy: the probes of Kubernetes are for that


def start(port: int) -> None:
    """Watches from now on, in a thread."""
    threading.Thread(target=watch, args=(lambda: ask(port),), name="guard", daemon=True).start()


def watch(
    ask: Callable[[], Health],
    end: Callable[[int], None] = os._exit,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns only where `end` does."""
    was_well, gone = False, 0
    while gone < _TIMES:
        pause(_EVERY_SECONDS)
        health = ask()
        was_well = was_well or health is Health.WELL
        gone = gone + 1 if health is Health.GONE and was_well else 0
    print("gymtrain: vLLM's engine is gone and its server is still there: ending it", flush=True)
    end(_EXIT_ENGINE_GONE)


def ask(port: int) -> Health:
    """One question to the server in this process."""
    try:
        status, _ = ready.get("/health", port, _PATIENCE_SECONDS)
    except ConnectionRefusedError:  # it has closed its port, and waits for what is under way
        return Health.GONE
    except OSError:
        return Health.UNKNOWN
    if status == 200:
        return Health.WELL
    return Health.GONE if status >= 500 else Health.UNKNOWN
