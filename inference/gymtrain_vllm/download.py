"""HTTP to the trainer: its manifest line by line, and parts of files, verified while they come."""

import contextlib
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import urljoin, urlsplit

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from gymtrain_api.manifest import FETCH_HEADER, FETCHED, WeightEnd, WeightHead, WeightPart
from gymtrain_vllm.errors import FetchError

_CHUNK = 1 << 20  # bytes: read, hashed and written while they are in the processor's cache
_TRIES = 3  # of each part
_STALL_SECONDS = 30.0  # without a byte
_LINE_LIMIT = 1 << 16  # bytes
_HEAD: TypeAdapter[WeightHead] = TypeAdapter(WeightHead)
_LATER: TypeAdapter[WeightPart | WeightEnd] = TypeAdapter(WeightPart | WeightEnd)


class Download:
    """Requests of one fetch; each thread keeps a connection of its own.

    No proxy: the trainer is in the cluster, whatever the environment says of the world outside.
    """

    def __init__(self, manifest_url: str, deadline: float, stop: threading.Event, fetch_id: str = "") -> None:
        """
        Args:
            manifest_url: of the version.
            deadline: by the monotonic clock.
            stop: ends it early, with an error.
            fetch_id: under which the trainer knows this fetch.
        """
        self._url = manifest_url
        self._fetch_id = fetch_id
        self._deadline = deadline
        self._stop = stop
        self._own = threading.local()

    def manifest(self, version: str) -> Iterator[WeightHead | WeightPart]:
        """The head, then each part as it is announced.

        Raises:
            FetchError: it is no manifest of `version`, or breaks off before its end.
        """
        with contextlib.closing(self._connect()) as connection:
            response = self._ask(connection, self._url, {}, 200)
            head = self._line(response, _HEAD)
            if head.version != version:
                raise FetchError(f"{self._url} holds version {head.version}, asked for {version}")
            yield head
            count = 0
            while isinstance(line := self._line(response, _LATER), WeightPart):
                count += 1
                yield line
            if line.parts != count:
                raise FetchError(f"{self._url}: {count} parts came, its end says {line.parts}")

    def part(self, part: WeightPart, file: int, memory: memoryview | None = None) -> None:
        """Writes one part to its place in an open file.

        Args:
            part: of the manifest.
            file: open for writing.
            memory: all of the file, where it is this process's memory too: one copy of the bytes less.

        Raises:
            FetchError: not before the deadline, or damaged at every try.
            OSError: the file can't be written.
        """
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(attempt - 1)  # a connection that the trainer closed is opened again at once
            try:
                self._part(part, file, memory)
            except FetchError:
                if attempt == _TRIES - 1 or self._stop.is_set() or time.monotonic() + attempt >= self._deadline:
                    raise
            else:
                return

    def tell_end(self) -> None:
        """Says that there is nothing to wait for any more. Whoever doesn't hear it asks for the weights some time."""
        url = urljoin(self._url, f"{FETCHED}/{self._fetch_id}")
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self._connect()) as connection:
            connection.request("POST", urlsplit(url).path, headers={"Content-Length": "0"})
            connection.getresponse()

    def _part(self, part: WeightPart, file: int, memory: memoryview | None) -> None:
        url, own = urljoin(self._url, part.name), self._own
        if not hasattr(own, "connection"):
            own.connection, own.memory = self._connect(), memoryview(bytearray(_CHUNK))
        try:
            asked = {"Range": f"bytes={part.offset}-{part.offset + part.bytes - 1}"}
            response = self._ask(own.connection, url, asked, 206)
            received, digest = 0, blake3()
            while received < part.bytes:
                size, place = min(_CHUNK, part.bytes - received), part.offset + received
                window = own.memory[:size] if memory is None else memory[place : place + size]
                count = self._step(url, partial(response.readinto, window))
                if not count:
                    break
                digest.update(window[:count])
                if memory is None:
                    _write(file, window[:count], place)
                received += count
            surplus = self._step(url, partial(response.readinto, own.memory[:1]))
            if received + surplus != part.bytes:
                raise FetchError(f"{url}: {received + surplus} bytes came, the manifest says {part.bytes}")
            if digest.hexdigest() != part.blake3:
                raise FetchError(f"{url}: blake3 is {digest.hexdigest()}, the manifest says {part.blake3}")
        except BaseException:
            own.connection.close()  # the next request opens it again
            raise

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        left = self._deadline - time.monotonic()
        return kind(parts.netloc, timeout=max(0.1, min(_STALL_SECONDS, left)))

    def _ask(
        self, connection: http.client.HTTPConnection, url: str, headers: dict[str, str], status: int
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")

        def ask() -> http.client.HTTPResponse:
            connection.request("GET", target, headers={**headers, FETCH_HEADER: self._fetch_id})
            return connection.getresponse()

        response = self._step(url, ask)
        if response.status != status:
            raise FetchError(f"{url}: HTTP status {response.status} {response.reason}, not {status}")
        return response

    def _line[T](self, response: http.client.HTTPResponse, kind: TypeAdapter[T]) -> T:
        while True:
            text = self._step(self._url, partial(response.readline, _LINE_LIMIT))
            if not text:
                raise FetchError(f"{self._url} breaks off: the trainer withdrew this version, or ended")
            if not text.isspace():  # an empty line only says that the trainer is alive
                break
        try:
            return kind.validate_json(text)
        except ValidationError as error:
            raise FetchError(f"{self._url} isn't a weight manifest: {error}") from error

    def _step[T](self, url: str, step: Callable[[], T]) -> T:
        if self._stop.is_set():
            raise FetchError(f"{url}: given up for a later version")
        if time.monotonic() > self._deadline:
            raise FetchError(f"{url}: not finished before the deadline")
        try:
            return step()
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{url}: {error or type(error).__name__}") from error


def _write(file: int, memory: memoryview, offset: int) -> None:
    written = 0
    while written < len(memory):
        written += os.pwrite(file, memory[written:], offset + written)
