"""Serves the page while the run goes on: http.server's threads over the index, which one thread keeps up to date."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gymtrain_report.errors import ReportError
from gymtrain_report.folder import RunFolder, finite
from gymtrain_report.index import Index
from gymtrain_report.overview import overview
from gymtrain_report.page import live_page

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0  # between two looks at what was written
_WAIT_SECONDS = 10.0  # of a client that says nothing
_QUERY = 2000  # characters


class Live:
    """What is served; made before the first step has ended."""

    def __init__(self, path: Path, database: Path, run: str = "") -> None:
        """`path`: of the run's folder; `database`: of the index, made anew; `run`: its name, else the folder's."""
        self._path = path
        self._run = run or path.resolve().name
        self._database = database
        self._index: Index | None = None
        self._folder: RunFolder | None = None
        self._looking = threading.Lock()

    def look(self) -> None:
        """Takes what was written since the last time. From any thread.

        Raises:
            ReportError: there is nothing to show yet.
        """
        with self._looking:
            if self._folder is None:
                self._folder = RunFolder(self._path, self._run)
            if self._index is None:
                self._index = Index(self._folder, self._database)
            self._index.update()

    def answer(self, target: str) -> tuple[HTTPStatus, str, str]:
        """Status, content type and body for a request of `target`."""
        asked = urlsplit(target[:_QUERY])
        if asked.path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", live_page(self._run)
        try:
            told = self._told(asked.path, asked.query)
        except ReportError as error:
            return HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", str(error)
        if told is None:
            return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "there is no such page, or no longer"
        return HTTPStatus.OK, "application/json", json.dumps(finite(told), allow_nan=False)

    def _told(self, path: str, query: str) -> Any:
        if self._index is None or self._folder is None:
            raise ReportError("no step of the run has ended yet")
        if path == "/api/overview":
            return overview(self._folder, self._index.ends(), self._index.hops())
        if path == "/api/rollouts":
            return self._index.search(dict(parse_qsl(query, max_num_fields=20)))
        number = path.removeprefix("/api/rollouts/")
        return self._index.rollout(int(number)) if number.isdecimal() and len(number) < 19 else None


def serve(
    live: Live,
    host: str,
    port: int,
    ready: Callable[[int], None] = lambda port: None,
    until: Callable[[], None] | None = None,
) -> None:
    """Serves until the process ends.

    Args:
        live: what is served.
        host: to listen on.
        port: 0 for any that is free.
        ready: told the port.
        until: returns when the server is to end; called in a thread of its own.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _WAIT_SECONDS
        server_version = "gymtrain-report"
        sys_version = ""

        def do_GET(self) -> None:
            status, kind, body = live.answer(self.path)
            payload = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(payload)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    with ThreadingHTTPServer((host, port), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=_keep_looking, args=(live,), name="index", daemon=True).start()
        if until is not None:
            threading.Thread(target=_end, args=(server, until), name="end", daemon=True).start()
        ready(server.server_address[1])
        server.serve_forever()


def _end(server: ThreadingHTTPServer, until: Callable[[], None]) -> None:
    until()
    server.shutdown()


def _keep_looking(live: Live) -> None:
    while True:
        try:
            live.look()
        except ReportError as error:
            log.debug("%s", error)
        except Exception:
            log.exception("the records could not be read; they are looked at again")
        time.sleep(_LOOK_SECONDS)
