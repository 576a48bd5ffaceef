"""Fetching one version of the weights: everything is in files and verified before the first byte is loaded.

    Download          HTTP to the trainer: its manifest line by line, and parts of files, verified while they come
    fetch             one version's files, in a folder that all worker processes of the pod share: the first one
                      fetches, the others wait for it
    BackgroundFetch   a fetch in a thread of its own, while the server keeps generating

What earlier versions had already is not fetched again (`file_cache`).
"""

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from gymtrain_api.manifest import PullUpdate, WeightEnd, WeightHead, WeightPart
from gymtrain_vllm import file_cache
from gymtrain_vllm.errors import FetchError

_STREAMS = 8  # parts at once
_PREFIX = "gymtrain-weights-"
_LOCK = "lock"  # held by who writes in the folder
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - each fetch has a folder of its own in it

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

    def __init__(self, manifest_url: str, deadline: float, stop: threading.Event) -> None:
        """
        Args:
            manifest_url: of the version.
            deadline: by the monotonic clock.
            stop: ends it early, with an error.
        """
        self._url = manifest_url
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

    def part(self, part: WeightPart, file: int) -> None:
        """Writes one part to its place in an open file.

        Raises:
            FetchError: not before the deadline, or damaged at every try.
            OSError: the file can't be written.
        """
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(attempt - 1)  # a connection that the trainer closed is opened again at once
            try:
                self._part(part, file)
            except FetchError:
                if attempt == _TRIES - 1 or self._stop.is_set() or time.monotonic() + attempt >= self._deadline:
                    raise
            else:
                return

    def _part(self, part: WeightPart, file: int) -> None:
        url, own = urljoin(self._url, part.name), self._own
        if not hasattr(own, "connection"):
            own.connection, own.memory = self._connect(), memoryview(bytearray(_CHUNK))
        try:
            asked = {"Range": f"bytes={part.offset}-{part.offset + part.bytes - 1}"}
            response = self._ask(own.connection, url, asked, 206)
            received, digest = 0, blake3()
            while received < part.bytes:
                window = own.memory[: min(_CHUNK, part.bytes - received)]
                count = self._step(url, partial(response.readinto, window))
                if not count:
                    break
                digest.update(window[:count])
                _write(file, window[:count], part.offset + received)
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
            connection.request("GET", target, headers=headers)
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


def fetch(update: PullUpdate, base: Path | None = None, stop: threading.Event | None = None) -> list[Path]:
    """The verified safetensors files of `update.version`, in the order of loading.

    Args:
        update: what to fetch, from where, and how long that may take. The trainer may still be writing it.
        base: folder to work in; memory if it has room, else the temporary folder.
        stop: ends it early, with an error.

    Raises:
        FetchError: anything is missing, late, damaged, or of another version.
    """
    stop = stop or threading.Event()
    deadline = time.monotonic() + update.timeout_seconds
    download = Download(update.manifest_url, deadline, stop)
    lines = download.manifest(update.version)
    head = next(lines)
    assert isinstance(head, WeightHead)
    folder = (base or _roomy_folder(head.bytes)) / _folder_name(update)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / _LOCK, deadline, stop):
            return _fetch_parts(download, lines, folder, file_cache.KeptFiles(update.version, base, spare=head.bytes))
    except OSError as error:
        raise FetchError(f"cannot write weights to {folder}: {error}") from error


def discard(files: list[Path]) -> None:
    """Frees the space. Another worker of the pod may have done so already."""
    for folder in {file.parent for file in files}:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(update: PullUpdate, base: Path | None = None) -> None:
    """Removes the files of other versions, and those kept from other attempts.

    The server's calls go to its workers one after the other: when one is told of a version, none reads an earlier one
    any more. A fetch that another worker was told to give up may not have ended yet: its folder stays until the next
    sweep, so that no other one is made under it.
    """
    for place in [base] if base else [_SHARED_MEMORY, Path(tempfile.gettempdir())]:
        for folder in place.glob(f"{_PREFIX}*"):
            if folder.name != _folder_name(update):
                with contextlib.suppress(OSError), (folder / _LOCK).open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
    file_cache.sweep(base, but=update.version)


def _folder_name(update: PullUpdate) -> str:
    return _PREFIX + hashlib.sha256(f"{update.manifest_url} {update.version}".encode()).hexdigest()[:16]


def _roomy_folder(size: int) -> Path:
    """Memory where twice the weights fit (a pod's /dev/shm is often 64 MiB), else the temporary folder."""
    try:
        if shutil.disk_usage(_SHARED_MEMORY).free > 2 * size and os.access(_SHARED_MEMORY, os.W_OK):
            return _SHARED_MEMORY
    except OSError:
        pass
    return Path(tempfile.gettempdir())


class _File:
    """A file of which parts come."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._unverified = path.with_name(f".{path.name}")
        self._lock = threading.Lock()
        self._missing = size
        self._offsets: set[int] = set()
        self.size = size
        with self._unverified.open("wb") as file:
            file.truncate(size)

    @property
    def complete(self) -> bool:
        return not self._missing

    def fetch(self, download: Download, part: WeightPart) -> None:
        with self._unverified.open("r+b", buffering=0) as file:
            download.part(part, file.fileno())
        with self._lock:
            if part.offset not in self._offsets:
                self._offsets.add(part.offset)
                self._missing -= part.bytes
            if self.complete:
                self._unverified.rename(self._path)  # a file under its own name is complete


def _fetch_parts(
    download: Download, lines: Iterator[WeightHead | WeightPart], folder: Path, store: file_cache.KeptFiles
) -> list[Path]:
    names: set[str] = set()
    files: dict[str, _File] = {}  # that were not complete before
    parts: dict[str, list[WeightPart]] = defaultdict(list)  # of those to keep
    futures: list[Future[None]] = []
    with ThreadPoolExecutor(max_workers=_STREAMS, thread_name_prefix="weights") as pool:
        try:
            for part in lines:
                assert isinstance(part, WeightPart)
                names.add(part.name)
                if part.kept:
                    if part.name not in parts and store.lend(part, folder):
                        continue
                    parts[part.name].append(part)
                if part.name not in files:
                    if (folder / part.name).exists():
                        continue
                    files[part.name] = _File(folder / part.name, part.size)
                futures.append(pool.submit(files[part.name].fetch, download, part))
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    if lacking := sorted(name for name, file in files.items() if not file.complete):
        raise FetchError(f"the manifest lacks parts of {', '.join(lacking)}")
    for name, own in parts.items():
        store.keep(folder / name, own)
    store.forget_all_but(names)
    return [folder / name for name in sorted(names)]


@contextlib.contextmanager
def _locked(path: Path, deadline: float, stop: threading.Event) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel frees it when a process dies."""
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stop.is_set() or time.monotonic() > deadline:
                    raise FetchError(f"another worker of this pod didn't finish fetching into {path.parent}") from None
                time.sleep(0.01)
        yield


class BackgroundFetch:
    """At most one fetch that was begun and not asked for yet, in a thread of its own."""

    def __init__(self, base: Path | None = None) -> None:
        """`base`: folder to work in, as for `fetch`."""
        self._base = base
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weights-ahead")
        self._begun: PullUpdate | None = None
        self._stop = threading.Event()
        self._files: Future[list[Path]] | None = None

    def begin(self, update: PullUpdate) -> None:
        """Starts to fetch; what was begun before and not asked for is given up."""
        self.give_up()
        sweep(update, self._base)  # here, not in the thread: later, another worker might be at a later version already
        self._begun, self._stop = update, threading.Event()
        self._files = self._pool.submit(fetch, update, self._base, self._stop)

    def files(self, update: PullUpdate) -> list[Path]:
        """The files of a version: those of the fetch that was begun, or fetched now.

        Raises:
            FetchError: anything is missing, late, damaged, or of another version.
        """
        begun = self._begun
        if begun is None or (begun.manifest_url, begun.version) != (update.manifest_url, update.version):
            self.begin(update)
        assert self._files is not None
        files, self._begun, self._files = self._files, None, None
        try:
            return files.result(update.timeout_seconds)
        except TimeoutError:
            self._stop.set()
            raise FetchError(f"{update.manifest_url}: not done in {update.timeout_seconds:.0f} s") from None

    def give_up(self) -> None:
        """Ends a fetch that nobody asked for, and frees its space."""
        self._stop.set()
        files, self._begun, self._files = self._files, None, None
        if files is not None:
            files.add_done_callback(_forget)

    def close(self) -> None:
        """No more fetches."""
        self.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _forget(files: Future[list[Path]]) -> None:
    if not files.cancelled() and files.exception() is None:
        discard(files.result())
