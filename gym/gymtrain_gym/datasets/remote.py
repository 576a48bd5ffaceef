"""Streaming datasets from stores outside the cluster to a volume.

| source | read by | credentials |
|---|---|---|
| s3:// | s3fs | botocore's variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), or those of a role |
| gs:// | gcsfs | GOOGLE_APPLICATION_CREDENTIALS_JSON, a service account's key |
| az:// | adlfs | adlfs's variables (AZURE_STORAGE_CONNECTION_STRING, ...) |
| hf://ORG/NAME/FILE.jsonl | huggingface_hub's file system | HF_TOKEN |
| hf://ORG/NAME/SPLIT, or another FILE | datasets' loader, streaming | HF_TOKEN |

Without credentials a source is read anonymously: libraries would otherwise ask the node's metadata service, to which
the run's network policy closes the way, and wait for it.

A file is copied in pieces. A piece that fails is tried again from where it stopped, as long as the object is the same.
"""

import base64
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gymtrain_api.sources import HubDataset, RemoteSource, StoredObject
from gymtrain_gym.errors import DatasetError, FetchError

PIECE_BYTES = 16 * 2**20
TRIES = 5  # in a row, without any progress
BACKOFF_SECONDS = 3.0
_CONNECT_SECONDS = 20
_READ_SECONDS = 120  # for the answer to one request
_ROWS_PER_WRITE = 256
_S3_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_AZURE_CREDENTIALS = (
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
)

type Progress = Callable[[int], None]
"""Called with the bytes written so far."""


@dataclass(frozen=True)
class Version:
    """What a remote file was when it was looked at.

    Attributes:
        name: changes when the content does: an ETag, a generation, a commit.
        size: in bytes; None where a loader makes the rows.
        md5: where the store offers it.
    """

    name: str
    size: int | None = None
    md5: bytes | None = None


class RemoteFile:
    """One object or file that can be read from any offset."""

    def __init__(self, file_system: Any, path: str) -> None:
        self._fs = file_system
        self._path = path

    def version(self) -> Version:
        """Looks at the file again, past all caches."""
        self._fs.invalidate_cache()
        info = self._fs.info(self._path)
        if info.get("type") == "directory":
            raise DatasetError("is a folder: name one file")
        name = next((info[key] for key in ("ETag", "etag", "generation", "blob_id", "oid") if info.get(key)), None)
        md5 = info.get("md5Hash") or (info.get("content_settings") or {}).get("content_md5")
        if isinstance(md5, str):
            md5 = base64.b64decode(md5)
        return Version(str(name or info.get("last_modified") or ""), int(info["size"]), bytes(md5) if md5 else None)

    def pieces(self, start: int) -> Iterator[bytes]:
        """The content from byte `start` on."""
        with self._fs.open(self._path, "rb", block_size=PIECE_BYTES, cache_type="none") as file:
            file.seek(start)
            while piece := file.read(PIECE_BYTES):
                yield piece


class HubRows:
    """Rows of a dataset of the hub, as JSON lines."""

    def __init__(self, source: HubDataset, environ: Mapping[str, str]) -> None:
        self._source = source
        self._token: str | bool = environ.get("HF_TOKEN") or False

    def version(self) -> Version:
        """The commit that the revision names now."""
        from huggingface_hub import HfApi

        info = HfApi().dataset_info(self._source.repo_id, revision=self._source.revision, token=self._token)
        return Version(str(info.sha))

    def lines(self, version: Version) -> Iterator[bytes]:
        """All rows as of `version`."""
        from datasets import load_dataset

        source = self._source
        more: dict[str, Any] = {"data_files": source.path, "split": "train"}
        if source.is_split:
            config, _, split = source.path.rpartition("/")
            more = {"name": config or None, "split": split}
        rows = load_dataset(source.repo_id, revision=version.name, token=self._token, streaming=True, **more)
        for number, row in enumerate(rows):
            try:
                yield orjson.dumps(row) + b"\n"
            except orjson.JSONEncodeError as error:
                raise DatasetError(f"row {number} has a value that JSON can't carry: {error}") from error


def open_remote(source: RemoteSource, environ: Mapping[str, str]) -> RemoteFile | HubRows:
    """What reads `source`, with the credentials in `environ`."""
    match source:
        case HubDataset(path=path) if source.is_split or not path.endswith(".jsonl"):
            return HubRows(source, environ)
        case HubDataset(repo_id=repo, revision=revision, path=path):
            from huggingface_hub import HfFileSystem

            at = f"@{revision}" if revision else ""
            return RemoteFile(HfFileSystem(token=environ.get("HF_TOKEN") or False), f"datasets/{repo}{at}/{path}")
        case StoredObject(scheme=scheme, url=url):
            return RemoteFile(_store(scheme, environ), url)


def _store(scheme: str, environ: Mapping[str, str]) -> Any:
    match scheme:
        case "s3":
            from s3fs import S3FileSystem

            region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
            return S3FileSystem(
                anon=not any(environ.get(name) for name in _S3_CREDENTIALS),
                client_kwargs={"region_name": region} if region else {},
                config_kwargs={"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS},
            )
        case "gs":
            # Zonal buckets, which gcsfs finds out about over gRPC: 60 s a call where that isn't answered.
            os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            from gcsfs import GCSFileSystem

            # It is the one library that takes no notice of HTTPS_PROXY unless it is told to.
            proxies = {"trust_env": True}
            key = environ.get("GOOGLE_APPLICATION_CREDENTIALS_JSON")
            if key is None:
                token = None if environ.get("GOOGLE_APPLICATION_CREDENTIALS") else "anon"
                return GCSFileSystem(token=token, session_kwargs=proxies)
            try:
                return GCSFileSystem(token=json.loads(key), session_kwargs=proxies)
            except ValueError as error:
                raise DatasetError("GOOGLE_APPLICATION_CREDENTIALS_JSON in its secret isn't JSON") from error
        case _:
            from adlfs import AzureBlobFileSystem

            if not any(environ.get(name) for name in ("AZURE_STORAGE_ACCOUNT_NAME", _AZURE_CREDENTIALS[0])):
                raise DatasetError("needs AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING in its secret")
            anonymous = not any(environ.get(name) for name in _AZURE_CREDENTIALS)
            return AzureBlobFileSystem(anon=anonymous, connection_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS)


def copy(remote: RemoteFile | HubRows, version: Version, target: Path, progress: Progress) -> None:
    """Copies all of `remote` to `target`, which isn't there before it is whole.

    Raises:
        DatasetError: trying again can't help: it doesn't exist, may not be read, isn't as announced.
        FetchError: it couldn't be read, or it changed meanwhile, or the volume is full.
    """
    free = os.statvfs(target.parent)
    room = free.f_bavail * free.f_frsize
    if version.size is not None and version.size > room:
        raise FetchError(f"has {_mb(version.size)}, and the volume has room for {_mb(room)}: see spec.data.storage")
    partial = target.with_name(target.name + ".partial")
    if isinstance(remote, RemoteFile):
        _copy_bytes(remote, version, partial, progress)
    else:
        _with_tries(lambda: _copy_rows(remote, version, partial, progress), lambda: 0)
    os.replace(partial, target)


def _copy_bytes(remote: RemoteFile, version: Version, partial: Path, progress: Progress) -> None:
    done, digest = 0, hashlib.md5(usedforsecurity=False)

    def go_on() -> None:
        nonlocal done
        if remote.version() != version:
            raise FetchError("changed while it was fetched: apply the run again once it is as it should be")
        for piece in remote.pieces(done):
            output.write(piece)
            digest.update(piece)
            done += len(piece)
            progress(done)
            if version.size is not None and done > version.size:
                raise FetchError(f"is longer than the {version.size} bytes that its store says")
        if done != version.size:
            raise OSError(f"ended after {done} of {version.size} bytes")

    with partial.open("wb") as output:
        _with_tries(go_on, lambda: done)
    if version.md5 is not None and digest.digest() != version.md5:
        raise FetchError("has not the checksum that its store has noted: upload it again")


def _copy_rows(remote: HubRows, version: Version, partial: Path, progress: Progress) -> None:
    with partial.open("wb") as output:
        for number, line in enumerate(remote.lines(version)):
            output.write(line)
            if number % _ROWS_PER_WRITE == 0:
                progress(output.tell())


def look(remote: RemoteFile | HubRows) -> Version:
    """The version that is there now.

    Raises:
        DatasetError, FetchError: see copy.
    """
    found: list[Version] = []
    _with_tries(lambda: found.append(remote.version()), lambda: 0)
    return found[-1]


def _with_tries(step: Callable[[], None], done: Callable[[], int]) -> None:
    """Runs `step` until it succeeds. Tries count from the last one that brought anything."""
    failed, before = 0, -1
    while True:
        try:
            return step()
        except (DatasetError, FetchError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FetchError(f"fills the volume after {_mb(done())}: see spec.data.storage") from error
            if refused := _refusal(error):
                raise DatasetError(refused) from error
            failed = 1 if done() > before else failed + 1
            before = max(before, done())
            if failed == TRIES:
                raise FetchError(f"failed {TRIES} times at byte {done()}, at last: {_one_line(error)}") from error
            print(f"try {failed} of {TRIES} failed at byte {done()}: {_one_line(error)}", flush=True)
            time.sleep(BACKOFF_SECONDS * failed)


def _refusal(error: Exception) -> str:
    """Why trying again can't help; empty where it may."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, PermissionError) or status in (401, 403) or kinds & {"GatedRepoError", "NoCredentialsError"}:
        return f"may not be read: see the credentials in its secret ({_one_line(error)})"
    if isinstance(error, FileNotFoundError) or status == 404 or "DatasetNotFoundError" in kinds:
        return f"doesn't exist, or may not be seen without credentials in its secret ({_one_line(error)})"
    if isinstance(error, ValueError | TypeError):  # wrong names, keys and rows, to these libraries
        return f"can't be read: {_one_line(error)}"
    return ""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
