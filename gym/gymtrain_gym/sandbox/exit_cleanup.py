"""Closing what is still open when the process ends: an agent that is stopped in the middle of its rollouts would leave
their sandboxes to their idle limit, and others would wait for their places meanwhile."""

import atexit
import contextlib
import threading
import time
import urllib.request

from gymtrain_gym.errors import GymImageError
from gymtrain_gym.sandbox.settings import Settings

_SECONDS = 5.0  # for all of them
_ONE_SECONDS = 2.0

_lock = threading.Lock()
_open: dict[str, Settings] = {}  # by sandbox


def opened(id: str, settings: Settings) -> None:
    """A sandbox that this process has to close."""
    with _lock:
        if not _open:
            atexit.unregister(close_all)
            atexit.register(close_all)
        _open[id] = settings


def closed(id: str) -> None:
    """Notes that it is closed, or that another process closes it."""
    with _lock:
        _open.pop(id, None)


def close_all() -> None:
    """Tells the broker, without an event loop, because none is left."""
    with _lock:
        left = dict(_open)
        _open.clear()
    end = time.monotonic() + _SECONDS
    for id, settings in left.items():
        if time.monotonic() > end:
            break
        with contextlib.suppress(OSError, GymImageError):  # the idle limit is there for these
            request = urllib.request.Request(  # noqa: S310 - http, checked by Settings
                f"{settings.broker_url}/v1/sandboxes/{id}",
                method="DELETE",
                headers={"Authorization": f"Bearer {settings.token}"},
            )
            urllib.request.urlopen(request, timeout=_ONE_SECONDS).close()  # noqa: S310 - the same
