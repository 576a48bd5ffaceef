"""Servers on this machine that answer with JSON."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

type Answer = Callable[[str], tuple[int, object]]
"""Of a path with its query: the status and the document."""


class JsonHandler(BaseHTTPRequestHandler):
    """Says nothing of its requests."""

    def answer(self, status: int, body: object) -> None:
        """Sends a document."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def serving(handler: type[JsonHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yields the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answers GET requests alone; yields the port."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(*answer(self.path))

    with serving(Handler, tls) as port:
        yield port
