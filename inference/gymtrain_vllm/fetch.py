"""Fetching one version of the weights: everything is in files and verified before the first byte is loaded.

    Download          what comes from the trainer (`download`)
    fetch             one version's files, in a folder that all worker processes of the pod share: the first one
                      fetches, the others wait for it
    BackgroundFetch   a fetch in a thread of its own, while the server keeps generating

What earlier versions had already is not fetched again (`file_cache`), and what they leave is written into
(`spare_files`). The trainer is told when a fetch in the background has ended.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Protocol

from gymtrain_api.manifest import PullUpdate, WeightHead, WeightPart
from gymtrain_api.spare_files import SpareFiles
from gymtrain_vllm import file_cache
from gymtrain_vllm.download import Download
from gymtrain_vllm.errors import FetchError

_STREAMS = 8  # parts at once
_PREFIX = "gymtrain-weights-"
_LOCK = "lock"  # held by who writes in the folder
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - each fetch has a folder of its own in it

_TELL_SECONDS = 5.0


class HeldFiles(Protocol):
    """Files that are this process's memory too, from one version to the next (`pinned_files`)."""

    def hold(self, files: Sequence[Path]) -> None:
        """These, of a version that is fetched, and no others any more."""

    def memory(self, file: Path) -> memoryview | None:
        """That of a file, if it is held."""


class NoFilesHeld:
    """Files that are files alone."""

    def hold(self, files: Sequence[Path]) -> None:
        """Nothing to do."""

    def memory(self, file: Path) -> memoryview | None:
        """No file's."""
        return None


_NO_FILES_HELD = NoFilesHeld()


def fetch(
    update: PullUpdate, base: Path | None = None, stop: threading.Event | None = None, held: HeldFiles = _NO_FILES_HELD
) -> list[Path]:
    """The verified safetensors files of `update.version`, in the order of loading.

    Args:
        update: what to fetch, from where, and how long that may take. The trainer may still be writing it.
        base: folder to work in; memory if it has room, else the temporary folder.
        stop: ends it early, with an error.
        held: files that may be written as memory.

    Raises:
        FetchError: anything is missing, late, damaged, or of another version.
    """
    stop = stop or threading.Event()
    deadline = time.monotonic() + update.timeout_seconds
    download = Download(update.manifest_url, deadline, stop, update.fetch_id)
    lines = download.manifest(update.version)
    head = next(lines)
    assert isinstance(head, WeightHead)
    folder = (base or _roomy_folder(head.bytes)) / _folder_name(update)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / _LOCK, deadline, stop):
            kept = file_cache.KeptFiles(update.version, base, spare=head.bytes)
            return _fetch_parts(download, lines, folder, kept, SpareFiles(folder.parent, fixed=True), held)
    except OSError as error:
        raise FetchError(f"cannot write weights to {folder}: {error}") from error


def discard(files: list[Path]) -> None:
    """Frees the space. Another worker of the pod may have done so already."""
    for folder in {file.parent for file in files}:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(update: PullUpdate, base: Path | None = None, *, reuse: bool = False) -> None:
    """Removes the files of other versions, and those kept from other attempts; with `reuse`, the files of versions
    become spare ones.

    The server's calls go to its workers one after the other: when one is told of a version, none reads an earlier one
    any more. A fetch that another worker was told to give up may not have ended yet: its folder stays until the next
    sweep, so that no other one is made under it.
    """
    for place in _places(base):
        for folder in place.glob(f"{_PREFIX}*"):
            if folder.name != _folder_name(update):
                with contextlib.suppress(OSError), (folder / _LOCK).open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if reuse:
                        SpareFiles(place).gather(folder)
                    shutil.rmtree(folder, ignore_errors=True)
    file_cache.sweep(base, but=update.version)


def _places(base: Path | None) -> list[Path]:
    """Where folders of versions may be."""
    return [base] if base else [_SHARED_MEMORY, Path(tempfile.gettempdir())]


def _folder_name(update: PullUpdate) -> str:
    return _PREFIX + hashlib.sha256(f"{update.manifest_url} {update.version}".encode()).hexdigest()[:16]


def _roomy_folder(size: int) -> Path:
    """Memory where twice the weights fit (a pod's /dev/shm is often 64 MiB), else the temporary folder."""
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free + SpareFiles(_SHARED_MEMORY).bytes
        if free > 2 * size and os.access(_SHARED_MEMORY, os.W_OK):
            return _SHARED_MEMORY
    except OSError:
        pass
    return Path(tempfile.gettempdir())


class _File:
    """A file of which parts come."""

    def __init__(self, path: Path, size: int, spare: SpareFiles, held: HeldFiles) -> None:
        self._path = path
        self._unverified = path.with_name(f".{path.name}")
        self._lock = threading.Lock()
        self._missing = size
        self._offsets: set[int] = set()
        self.size = size
        self._unverified.unlink(missing_ok=True)  # no file changes its size: it may be pinned
        if not spare.take(self._unverified, size):
            with self._unverified.open("wb") as file:
                file.truncate(size)
        self._memory = held.memory(self._unverified)

    @property
    def complete(self) -> bool:
        return not self._missing

    def fetch(self, download: Download, part: WeightPart) -> None:
        with self._unverified.open("r+b", buffering=0) as file:
            download.part(part, file.fileno(), self._memory)
        with self._lock:
            if part.offset not in self._offsets:
                self._offsets.add(part.offset)
                self._missing -= part.bytes
            if self.complete:
                self._unverified.rename(self._path)  # a file under its own name is complete


def _fetch_parts(
    download: Download,
    lines: Iterator[WeightHead | WeightPart],
    folder: Path,
    store: file_cache.KeptFiles,
    spare: SpareFiles,
    held: HeldFiles,
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
                    files[part.name] = _File(folder / part.name, part.size, spare, held)
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
    spare.clear()
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

    def __init__(self, base: Path | None = None, held: HeldFiles = _NO_FILES_HELD) -> None:
        """
        Args:
            base: folder to work in, as for `fetch`.
            held: gets the files of each version that is fetched, before anybody hears of them, and none when they go.
        """
        self.reuses = False  # the memory of versions that were loaded: nothing may look at them any more
        self._base = base
        self._held = held
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weights-ahead")
        self._begun: PullUpdate | None = None
        self._stop = threading.Event()
        self._files: Future[list[Path]] | None = None
        self._loaded: list[Path] = []  # whose folders may still be there

    def begin(self, update: PullUpdate) -> None:
        """Starts to fetch; what was begun before and not asked for is given up."""
        self.give_up()
        # Here, not in the thread: later, another worker might be at a later version already.
        sweep(update, self._base, reuse=self.reuses)
        self._begun, self._stop = update, threading.Event()
        self._files = self._pool.submit(self._fetch, update, self._stop)

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

    def done_with(self, files: list[Path]) -> None:
        """A version is loaded, by all workers of the pod: frees its space, or leaves it for the next one."""
        self._loaded = files
        if not self.reuses:
            self._discard(files)

    def give_up(self) -> None:
        """Ends a fetch that nobody asked for, and frees its space."""
        self._stop.set()
        files, self._begun, self._files = self._files, None, None
        if files is not None:
            files.add_done_callback(self._forget)

    def close(self) -> None:
        """No more fetches."""
        self.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._discard(self._loaded)
        for place in _places(self._base):
            SpareFiles(place).clear()

    def _fetch(self, update: PullUpdate, stop: threading.Event) -> list[Path]:
        try:
            files = fetch(update, self._base, stop, self._held)
            self._held.hold(files)
            return files
        finally:
            if update.fetch_id and not stop.is_set():
                Download(update.manifest_url, time.monotonic() + _TELL_SECONDS, stop, update.fetch_id).tell_end()

    def _forget(self, files: Future[list[Path]]) -> None:
        if not files.cancelled() and files.exception() is None:
            self._discard(files.result())

    def _discard(self, files: list[Path]) -> None:
        self._held.hold(())
        discard(files)
