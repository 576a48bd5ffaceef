"""Fetching one version of the weights: everything is on disk and verified before the first byte is loaded.

All worker processes of a pod share one folder: the first one fetches, the others wait for it.
"""

import fcntl
import hashlib
import http.client
import mmap
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin

from pydantic import ValidationError

from gymtrain_api.manifest import PullUpdate, WeightFile, WeightManifest
from gymtrain_vllm.errors import FetchError

_STREAMS = 8  # files at once
_CHUNK = 1 << 20  # bytes: read, then hashed while it is in the processor's cache
_TRIES = 3  # of each file
_STALL_SECONDS = 30.0  # without a byte
_MANIFEST_LIMIT = 16 << 20  # bytes
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def fetch(update: PullUpdate, base: Path | None = None) -> list[Path]:
    """The verified safetensors files of `update.version`, in the manifest's order.

    Args:
        update: what to fetch, from where, and how long that may take.
        base: folder to work in; memory if it has room, else the temporary folder.

    Raises:
        FetchError: anything is missing, late, damaged, or of another version.
    """
    deadline = time.monotonic() + update.timeout_seconds
    manifest = _read_manifest(update, deadline)
    folder = (base or _roomy_folder(manifest.total_bytes)) / _folder_name(update)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock", deadline):
            _fetch_files(update.manifest_url, manifest.files, folder, deadline)
    except OSError as error:
        raise FetchError(f"cannot write weights to {folder}: {error}") from error
    return [folder / file.name for file in manifest.files]


def discard(files: list[Path]) -> None:
    """Frees the space. Another worker of the pod may have done so already."""
    for folder in {file.parent for file in files}:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_name(update: PullUpdate) -> str:
    return "gymtrain-weights-" + hashlib.sha256(f"{update.manifest_url} {update.version}".encode()).hexdigest()[:16]


def _roomy_folder(size: int) -> Path:
    """Memory where twice the weights fit (a pod's /dev/shm is often 64 MiB), else the temporary folder."""
    try:
        if shutil.disk_usage(_SHARED_MEMORY).free > 2 * size and os.access(_SHARED_MEMORY, os.W_OK):
            return _SHARED_MEMORY
    except OSError:
        pass
    return Path(tempfile.gettempdir())


def _read_manifest(update: PullUpdate, deadline: float) -> WeightManifest:
    with _open(update.manifest_url, deadline) as response:
        text = response.read(_MANIFEST_LIMIT)
    try:
        manifest = WeightManifest.model_validate_json(text)
    except ValidationError as error:
        raise FetchError(f"{update.manifest_url} is no weight manifest: {error}") from error
    if manifest.version != update.version:
        raise FetchError(f"{update.manifest_url} holds version {manifest.version}, asked for {update.version}")
    return manifest


def _fetch_files(manifest_url: str, files: list[WeightFile], folder: Path, deadline: float) -> None:
    missing = [file for file in files if not (folder / file.name).exists()]
    with ThreadPoolExecutor(max_workers=_STREAMS, thread_name_prefix="weights") as pool:
        futures = [
            pool.submit(_fetch_file, urljoin(manifest_url, file.name), file, folder, deadline) for file in missing
        ]
        try:
            for future in as_completed(futures):
                future.result()
        except FetchError:
            for future in futures:
                future.cancel()
            raise


def _fetch_file(url: str, file: WeightFile, folder: Path, deadline: float) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            _fetch_once(url, file, folder, deadline)
        except FetchError:
            if attempt == _TRIES or time.monotonic() + attempt >= deadline:
                raise
            time.sleep(attempt)
        else:
            return


def _fetch_once(url: str, file: WeightFile, folder: Path, deadline: float) -> None:
    unverified = folder / f".{file.name}"
    with _open(url, deadline) as response, unverified.open("w+b") as target:
        if file.bytes:
            os.posix_fallocate(target.fileno(), 0, file.bytes)  # a full disk is an error here, not a signal below
        received, digest = _receive(response, target, file.bytes, url, deadline)
    if received != file.bytes:
        raise FetchError(f"{url}: {received} bytes, the manifest says {file.bytes}")
    if digest != file.sha256:
        raise FetchError(f"{url}: sha256 is {digest}, the manifest says {file.sha256}")
    unverified.rename(folder / file.name)  # a file under its own name is complete


def _receive(
    response: http.client.HTTPResponse, target: BinaryIO, size: int, url: str, deadline: float
) -> tuple[int, str]:
    """Reads straight into the file's memory; returns the number of bytes that came and their sha256."""
    digest = hashlib.sha256()
    received = 0
    if size:
        with mmap.mmap(target.fileno(), size) as memory, memoryview(memory) as view:
            while received < size:
                with view[received : received + _CHUNK] as window:
                    count = _read(partial(response.readinto, window), url, deadline)
                    if not count:
                        break
                    digest.update(window[:count])
                received += count
    surplus = _read(lambda: len(response.read(1)), url, deadline)
    return received + surplus, digest.hexdigest()


def _read(step: Callable[[], int], url: str, deadline: float) -> int:
    if time.monotonic() > deadline:
        raise FetchError(f"{url}: not done before the deadline")
    try:
        return step()
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"{url}: {error}") from error


@cache
def _opener() -> urllib.request.OpenerDirector:
    """Made once: it reads the machine's certificates, which takes longer than to fetch a file.

    No proxy: the trainer is in the cluster, whatever the environment says of the world outside.
    """
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def _open(url: str, deadline: float) -> Iterator[http.client.HTTPResponse]:
    left = deadline - time.monotonic()
    if left <= 0:
        raise FetchError(f"{url}: not reached before the deadline")
    try:
        response = _opener().open(url, timeout=min(_STALL_SECONDS, left))
    except (OSError, http.client.HTTPException, urllib.error.URLError) as error:
        raise FetchError(f"{url}: {error}") from error
    with response:
        yield response


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel frees it when a process dies."""
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FetchError(f"another worker of this pod didn't finish fetching into {path.parent}") from None
                time.sleep(0.05)
        yield
