"""Building images side by side: one waits for the package index while another unpacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter

from dev.images.dockerfiles import Image
from dev.report import DevError, say

_AT_ONCE = 3  # on two cores, which one or two builds leave idle for a quarter of the time


def build_all(images: Sequence[Image], build: Callable[[Image], None], at_once: int = _AT_ONCE) -> dict[str, DevError]:
    """Build all, each after those it needs; returns what went wrong, by name. A broken one does not hold up the rest.

    Anything but a `DevError` ends the whole when what is under way has ended.
    """
    by_name = {image.name: image for image in images}
    sorter = TopologicalSorter({image.name: image.needs & by_name.keys() for image in images})
    sorter.prepare()
    needed = {name for image in images for name in image.needs}
    failed: dict[str, DevError] = {}
    waiting: list[str] = []
    running: dict[Future[None], str] = {}
    with ThreadPoolExecutor(at_once) as pool:
        while sorter.is_active():
            waiting += sorter.get_ready()
            waiting.sort(key=lambda name: name not in needed)  # stable: what others wait for comes first
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                if broken := sorted(by_name[name].needs & failed.keys()):
                    failed[name] = DevError(f"{by_name[name].tag} is not built: it needs {', '.join(broken)}")
                    say(failed[name].what)
                    sorter.done(name)
                    waiting += sorter.get_ready()
                else:
                    running[pool.submit(build, by_name[name])] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                try:
                    future.result()
                except DevError as error:
                    failed[name] = error
                    say(error.what)
                sorter.done(name)
    return failed
