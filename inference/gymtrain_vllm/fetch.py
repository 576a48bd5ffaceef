"""Fetching one version of the weights: everything is in files and verified before the first byte is loaded.

All worker processes of a pod share one folder: the first one fetches, the others wait for it. What earlier versions
had already is not fetched again (`kept`).
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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from gymtrain_api.manifest import PullUpdate, WeightHead, WeightPart
from gymtrain_vllm import file_cache
from gymtrain_vllm.download import Download
from gymtrain_vllm.errors import FetchError

_STREAMS = 8  # parts at once
_PREFIX = "gymtrain-weights-"
_LOCK = "lock"  # held by who writes in the folder
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - each fetch has a folder of its own in it


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
    """Removes what is left of other versions, and what was kept of other attempts.

    The server's calls go to its workers one after the other: when one is told of a version, none reads an earlier one
    any more. A fetch that another worker was told to give up may not have ended yet: its folder stays until the next
    sweep, so that nothing is made anew under it.
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
