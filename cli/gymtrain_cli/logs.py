"""The logs of all pods of a run as one: merged by time, each line with the part that it comes from."""

import heapq
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from gymtrain_api import labels
from gymtrain_client.cluster import Cluster, LogOptions, Object
from gymtrain_client.errors import UnavailableError

PARTS = [str(role) for role in labels.Role if role != labels.Role.SANDBOX]
_NEW_PODS_SECONDS = 2.0
_WAITING_LINES = 10_000  # of all pods; a reader that is slower holds the pods' streams up
_DURATION = re.compile(r"^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")


@dataclass(frozen=True)
class Line:
    """A line of a log. `time`: RFC 3339 as the kubelet writes it, which sorts as text."""

    time: str
    part: str
    pod: str
    text: str


@dataclass(frozen=True)
class Source:
    """A container."""

    part: str
    pod: str
    container: str


def seconds_of(text: str) -> int:
    """Of a duration such as 90s, 10m or 1h30m.

    Raises:
        ValueError: it is none.
    """
    found = _DURATION.match(text)
    if not text or found is None:
        raise ValueError(f"{text!r} is no duration: write one such as 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def sources(cluster: Cluster, run: str, parts: Collection[str]) -> list[Source]:
    """The containers of the run's pods, of some parts or all."""
    found = []
    for pod in cluster.pods(labels.run_labels(run)):
        part = (pod["metadata"].get("labels") or {}).get(labels.ROLE, "")
        if (not parts and part != labels.Role.SANDBOX) or part in parts:
            found += [Source(part, pod["metadata"]["name"], name) for name in _containers(pod)]
    return sorted(found, key=lambda one: (one.part, one.pod, one.container))


def _containers(pod: Object) -> list[str]:
    spec = pod["spec"]
    return [one["name"] for kind in ("initContainers", "containers") for one in spec.get(kind) or []]


def merged(cluster: Cluster, run: str, parts: Collection[str], options: LogOptions) -> Iterator[Line]:
    """What the logs hold now, by time."""
    return heapq.merge(
        *(_lines(cluster, source, options) for source in sources(cluster, run, parts)), key=lambda line: line.time
    )


def _lines(cluster: Cluster, source: Source, options: LogOptions) -> Iterator[Line]:
    for text in cluster.log(source.pod, source.container, replace(options, timestamps=True)):
        stamp, _, rest = text.partition(" ")
        yield Line(stamp, source.part, source.pod, rest)


def followed(
    cluster: Cluster,
    run: str,
    parts: Collection[str],
    options: LogOptions,
    ended: Callable[[], bool],
    new_pods_seconds: float = _NEW_PODS_SECONDS,
) -> Iterator[Line]:
    """Lines as they come, also of pods that come later, until `ended` and all streams are read.

    Raises:
        ClientError: the API server refuses, or the run's pods can't be listed. A stream that breaks is opened again,
            from where it was.
    """
    lines: queue.Queue[Line | Exception] = queue.Queue(_WAITING_LINES)
    streams: dict[Source, threading.Thread] = {}
    over: set[Source] = set()
    last: dict[Source, str] = {}

    def stream(source: Source) -> None:
        again = options
        while True:
            try:
                for line in _lines(cluster, source, replace(again, follow=True)):
                    if line.time > last.get(source, ""):
                        last[source] = line.time
                        lines.put(line)
                break
            except UnavailableError:
                time.sleep(new_pods_seconds)
                again = replace(options, tail=None)
            except Exception as error:  # nobody else would hear of it
                lines.put(error)
                return
        if source in last:
            over.add(source)

    look = 0.0
    while True:
        if time.monotonic() >= look:
            finished = ended()
            for source in sources(cluster, run, parts):
                thread = streams.get(source)
                if source not in over and (thread is None or not thread.is_alive()):  # one that has begun only now
                    streams[source] = threading.Thread(target=stream, args=(source,), daemon=True)
                    streams[source].start()
            if finished and lines.empty() and not any(thread.is_alive() for thread in streams.values()):
                return
            look = time.monotonic() + new_pods_seconds
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(line, Exception):
            raise line
        yield line
