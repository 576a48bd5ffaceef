"""What the trainer offers of its weights: staged versions on disk, and which pod holds which version.

    FOLDER/NUMBER/{00000.safetensors, ...}      the manifest of each is in memory

A version can be asked for from its beginning: the manifest names a part only when it is written, and ends only when all
are. One version is kept besides the one being written, so the folder needs twice the size of the weights. The files of
the one before these are written into again.

| route | answer |
|---|---|
| GET /weights/held | `WeightsHeld`: the current version, and what each vLLM pod holds |
| GET /weights/NUMBER/manifest | the lines of the manifest as they come, to the end of the version |
| GET /weights/NUMBER/FILE | a staged file or a range of it, sent by the kernel (sendfile) |
| POST /weights/NUMBER/fetched/ID | a pod has all of the version, or can't have it; ID is that of its fetch |
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from gymtrain_api.manifest import FETCH_HEADER, FETCHED, MANIFEST_FILE, WeightEnd, WeightHead, WeightPart
from gymtrain_api.spare_files import SpareFiles
from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.store.fetches import Fetches
from gymtrain_trainer.weights.store.layout import Layout

_ALIVE_SECONDS = 5.0  # without a line: then an empty one, so that the reader can tell slow from gone
_FILE_NAME = re.compile(r"[\w][\w.-]*")


class AnnouncedManifest:
    """The manifest of one version: the threads that write weights add lines, HTTP requests of any event loop follow."""

    def __init__(self, version: str, expected_bytes: int) -> None:
        """`expected_bytes`: of all files, as far as known before they are written."""
        self._version = version
        self._expected_bytes = expected_bytes
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._closed = False
        self._followers: list[Callable[[], object]] = []
        self.parts = 0
        self.total_bytes = 0
        self.fresh_bytes = 0  # of parts that no version before had
        self.layout: Layout | None = None  # of the whole version, once it is complete
        self.complete = False

    def add(self, part: WeightPart, *, carried: bool = False) -> None:
        """One more part lies in its file; `carried`: as it did in the version before. From any thread."""
        with self._lock:
            self._lines.append(part.line())
            self.parts += 1
            self.total_bytes += part.bytes
            self.fresh_bytes += 0 if carried else part.bytes
        self._wake()

    def end(self, layout: Layout | None = None) -> None:
        """No part is missing."""
        with self._lock:
            self.layout = layout
            self._lines.append(WeightEnd(parts=self.parts).line())
            self.complete = self._closed = True
        self._wake()

    def break_off(self) -> None:
        """Ends the lines early: readers learn that the version was withdrawn."""
        with self._lock:
            self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """All lines, as they come; empty ones while none comes."""
        loop, sent = asyncio.get_running_loop(), 0
        size = self.total_bytes if self.complete else self._expected_bytes
        yield WeightHead(version=self._version, bytes=size).line()
        while True:
            changed = asyncio.Event()
            with self._lock:
                fresh, closed = self._lines[sent:], self._closed
                if not fresh and not closed:
                    self._followers.append(partial(loop.call_soon_threadsafe, changed.set))
            if fresh:
                sent += len(fresh)
                yield b"".join(fresh)
            elif closed:
                return
            else:
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b"\n"

    def _wake(self) -> None:
        with self._lock:
            followers, self._followers = self._followers, []
        for wake in followers:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                wake()


@dataclass(frozen=True)
class Draft:
    """A version that is being written."""

    folder: Path
    manifest: AnnouncedManifest
    spare: SpareFiles
    before: Layout | None = None  # of the last complete version, whose files lie beside it


class WeightStore:
    """The folder of staged versions."""

    def __init__(self, folder: Path) -> None:
        """Takes over `folder`, and empties it: files of an earlier process are removed."""
        self.held: Callable[[], WeightsHeld] = WeightsHeld  # the transport's answer, once there is one
        self.fetches = Fetches()
        self._folder = folder
        self._manifests: dict[int, AnnouncedManifest] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def begin(self, number: int, version: str, expected_bytes: int = 0) -> Draft:
        """Opens version `number`; older versions but the last complete one are removed first.

        Args:
            number: of the sync.
            version: label of the sync.
            expected_bytes: of all files, as far as known: readers choose by it where they put them.

        Raises:
            StagingError: its folder can't be made.
        """
        complete = sorted(number for number, manifest in list(self._manifests.items()) if manifest.complete)
        for old in complete[:-1]:
            SpareFiles(self._folder).gather(self._folder / str(old))
            self.drop(old)
        folder = self._folder / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StagingError(f"cannot make {folder}: {error}") from error
        before = self._manifests[complete[-1]].layout if complete else None
        manifest = self._manifests[number] = AnnouncedManifest(version, expected_bytes)
        return Draft(folder, manifest, SpareFiles(self._folder), before)

    def drop(self, number: int) -> None:
        """Forgets a version that no pod is to hold, complete or not."""
        manifest = self._manifests.pop(number, None)
        if manifest is not None:
            manifest.break_off()
        shutil.rmtree(self._folder / str(number), ignore_errors=True)

    def manifest(self, number: str) -> AnnouncedManifest | None:
        """Of a version, complete or not."""
        return self._manifests.get(int(number)) if number.isdecimal() else None

    def find(self, number: str, name: str) -> Path | None:
        """A file of a version; None for anything else, whatever the strings hold."""
        if self.manifest(number) is None or not _FILE_NAME.fullmatch(name):
            return None
        path = self._folder / str(int(number)) / name
        return path if path.is_file() else None

    def clear(self) -> None:
        """Frees the space."""
        for number in list(self._manifests):
            self.drop(number)
        shutil.rmtree(self._folder, ignore_errors=True)


def weight_routes(store: WeightStore) -> list[web.AbstractRouteDef]:
    """Routes for the trainer's application."""

    async def held(_: web.Request) -> web.Response:
        return web.json_response(text=store.held().model_dump_json())

    def heard(request: web.Request) -> None:
        fetch = store.fetches.find(request.headers.get(FETCH_HEADER, ""))
        if fetch is not None:
            fetch.heard()

    async def manifest(request: web.Request) -> web.StreamResponse:
        heard(request)
        found = store.manifest(request.match_info["number"])
        if found is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for lines in found.follow():
            await response.write(lines)
        await response.write_eof()
        return response

    async def weights(request: web.Request) -> web.StreamResponse:
        heard(request)
        path = store.find(request.match_info["number"], request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        return web.FileResponse(path)

    async def fetched(request: web.Request) -> web.Response:
        fetch = store.fetches.find(request.match_info["fetch_id"])
        if fetch is None:
            raise web.HTTPNotFound(text=f"no such fetch: {request.path}\n")
        fetch.end(request.remote or "")
        return web.Response(status=204)

    return [
        web.get("/weights/held", held),
        web.get(f"/weights/{{number}}/{MANIFEST_FILE}", manifest),
        web.get("/weights/{number}/{name}", weights),
        web.post(f"/weights/{{number}}/{FETCHED}/{{fetch_id}}", fetched),
    ]
