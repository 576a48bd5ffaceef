"""A stand-in of the Hugging Face hub: the routes by which huggingface_hub and datasets read the files of datasets and
models."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Its datasets and models, and what was asked of it.

    Attributes:
        files: content by ORG/NAME and path.
        token: what opens them; None opens them to all.
        gated: models whose terms nobody has accepted.
        breaks: how many of the next answers with content end in their middle.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str | None = None
    breaks: int = 0
    gated: set[str] = field(default_factory=set)
    tokens_seen: set[str] = field(default_factory=set)


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub on a port of its own."""
    state = Hub()

    class Handler(_Handler):
        hub = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(json.loads(self._body()) if "json" in self.headers.get("Content-Type", "") else self._form())

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _form(self) -> dict[str, Any]:
        pairs = [pair.split("=", 1) for pair in self._body().decode().split("&") if "=" in pair]
        return {"paths": [unquote(value.replace("+", " ")) for key, value in pairs if key == "paths"]}

    def _answer(self, body: Any = None) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.hub.tokens_seen.add(token)
        place = r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?"
        found = re.fullmatch(place, path)
        resolved = re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path)
        name = str((found or resolved or [None, ""])[1])
        files = self.hub.files.get(name)
        if files is None or (self.hub.token and token != self.hub.token):
            self._send(401 if not token else 404, b'{"error":"Repository not found"}', "RepoNotFound")
        elif resolved and name in self.hub.gated:
            self._send(403, b'{"error":"Access to this model is restricted"}', "GatedRepo")
        elif resolved:
            self._file(files, resolved[3])
        elif found and found[2] in ("revision", None):
            self._revision(name, files, found[3] and str(found[3]))
        elif found and found[2] == "tree":
            below = f"{found[4]}/" if found[4] else ""
            self._json(_tree(files, below))
        elif found:
            self._json([_entry(p, files[p]) for p in (body or {}).get("paths", []) if p in files])

    def _revision(self, name: str, files: dict[str, bytes], revision: str | None) -> None:
        if revision not in (None, "main", COMMIT):
            return self._send(404, b'{"error":"Revision not found"}', "RevisionNotFound")
        siblings = [{"rfilename": path} for path in files]
        return self._json({"id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings})

    def _file(self, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            return self._send(404, b"", "EntryNotFound")
        content = files[path]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        part = content[int(wanted[1]) : int(wanted[2] or len(content)) + 1] if wanted else content
        self.send_response(206 if wanted else 200)
        if wanted:
            end = int(wanted[1]) + len(part) - 1
            self.send_header("Content-Range", f"bytes {wanted[1]}-{end}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if self.hub.breaks > 0:
            self.hub.breaks -= 1
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return None
        self.wfile.write(part)
        return None

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode())

    def _send(self, status: int, content: bytes, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": digest}


def _tree(files: dict[str, bytes], below: str) -> list[dict[str, Any]]:
    inside = {path for path in files if path.startswith(below)}
    folders = {below + path.removeprefix(below).partition("/")[0] for path in inside if "/" in path.removeprefix(below)}
    return [
        *({"type": "directory", "path": path, "size": 0, "oid": COMMIT} for path in sorted(folders)),
        *(_entry(path, files[path]) for path in sorted(inside) if "/" not in path.removeprefix(below)),
    ]
