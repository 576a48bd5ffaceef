"""The logs of all pods of a run as one: merged by time, each line with the part that it comes from."""

import heapq
import math
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
_LAST_LINES_SECONDS = 5.0
_SILENCE_SECONDS = 3600.0  # of the API server
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
    """A container; after each restart another one."""

    part: str
    pod: str
    container: str
    restarts: int = 0


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
            restarts = _restarts(pod)
            found += [Source(part, pod["metadata"]["name"], name, restarts.get(name, 0)) for name in _containers(pod)]
    return sorted(found, key=lambda one: (one.part, one.pod, one.container))


def _containers(pod: Object) -> list[str]:
    spec = pod["spec"]
    return [one["name"] for kind in ("initContainers", "containers") for one in spec.get(kind) or []]


def _restarts(pod: Object) -> dict[str, int]:
    status = pod.get("status") or {}
    said = [one for kind in ("initContainerStatuses", "containerStatuses") for one in status.get(kind) or []]
    return {one["name"]: one["restartCount"] for one in said}


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
    say: Callable[[str], None] = lambda text: None,
    new_pods_seconds: float = _NEW_PODS_SECONDS,
    last_lines_seconds: float = _LAST_LINES_SECONDS,
) -> Iterator[Line]:
    """Lines as they come, also of pods that come later, until `ended`; then what the logs hold beyond them, by time.

    A stream that breaks is opened again, from where it was. `say` is told when the API server doesn't answer; it is
    asked again.

    Raises:
        ClientError: the API server refuses; or it doesn't answer, at the first time or for an hour, or at the end.
    """
    streams = _Streams(cluster, options, new_pods_seconds)
    answered, silent = -math.inf, False
    while True:
        try:
            if ended():
                break
            streams.open(sources(cluster, run, parts))
        except UnavailableError as error:
            if time.monotonic() - answered > _SILENCE_SECONDS:
                raise
            if not silent:
                say(f"the API server hasn't answered since {time.strftime('%H:%M:%S')}, trying again: {error.reason}")
            silent = True
        else:
            answered, silent = time.monotonic(), False
        yield from streams.lines(new_pods_seconds)
    # A container may outlive the run, and its log's stream with it.
    deadline = time.monotonic() + last_lines_seconds
    while not streams.ended and time.monotonic() < deadline:
        yield from streams.lines(0.1)
    yield from streams.rest(sources(cluster, run, parts))


class _Streams:
    """Logs that are followed, each by a thread."""

    def __init__(self, cluster: Cluster, options: LogOptions, again_seconds: float) -> None:
        self._cluster, self._options, self._again_seconds = cluster, options, again_seconds
        self._threads: dict[Source, threading.Thread] = {}
        self._read: set[Source] = set()  # to their ends
        self._found: queue.Queue[tuple[Source, Line] | Exception] = queue.Queue(_WAITING_LINES)
        self._shown: dict[tuple[str, str], str] = {}  # time of the last line, by pod and container

    def open(self, found: Collection[Source]) -> None:
        """Follows those that aren't followed yet; also again, where one had nothing to say: it may not have begun."""
        for source in found:
            thread = self._threads.get(source)
            if source not in self._read and (thread is None or not thread.is_alive()):
                self._threads[source] = threading.Thread(target=self._follow, args=(source,), daemon=True)
                self._threads[source].start()

    def lines(self, seconds: float) -> Iterator[Line]:
        """Those that come in that time. Raises ClientError where the API server refuses a log."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                found = self._found.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(found, Exception):
                raise found
            if self._is_new(*found):
                yield found[1]

    @property
    def ended(self) -> bool:
        """Whether all streams are, and their lines are taken."""
        return not any(thread.is_alive() for thread in self._threads.values()) and self._found.empty()

    def rest(self, found: Collection[Source]) -> Iterator[Line]:
        """What the logs hold now that wasn't shown. Raises ClientError as `lines` does, or if the server is away."""
        return heapq.merge(
            *(self._rest(source) for source in found if source not in self._read), key=lambda line: line.time
        )

    def _rest(self, source: Source) -> Iterator[Line]:
        for line in _lines(self._cluster, source, self._from_where(source)):
            if self._is_new(source, line):
                yield line

    def _from_where(self, source: Source) -> LogOptions:
        known = (source.pod, source.container) in self._shown
        return replace(self._options, tail=None) if known else self._options

    def _is_new(self, source: Source, line: Line) -> bool:
        container = source.pod, source.container
        if line.time <= self._shown.get(container, ""):
            return False
        self._shown[container] = line.time
        return True

    def _follow(self, source: Source) -> None:
        options, spoke = replace(self._from_where(source), follow=True), False
        while True:
            try:
                for line in _lines(self._cluster, source, options):
                    options, spoke = replace(options, tail=None), True
                    self._found.put((source, line))
                break
            except UnavailableError:
                time.sleep(self._again_seconds)
            except Exception as error:  # nobody else would hear of it
                self._found.put(error)
                return
        if spoke:
            self._read.add(source)
