"""A proxy by CONNECT, behind which hosts with certificates of a private authority are: what a company's network has."""

import contextlib
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEAD_BYTES = 64 * 1024


@dataclass
class Proxy:
    """One that knows `hosts`, which nobody else can resolve.

    Attributes:
        url: to be set as HTTPS_PROXY.
        authority: a file with the certificate that signed those of the hosts.
        hosts: by name, the port of 127.0.0.1 at which plain HTTP answers for it.
        asked: the hosts that were connected to, in order.
    """

    url: str
    authority: Path
    hosts: dict[str, int]
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def proxy(hosts: dict[str, int], folder: Path) -> Iterator[Proxy]:
    """A proxy on a port of its own; certificates and keys are in `folder`."""
    context = _certificates(list(hosts), folder)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    state = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", folder / "ca.crt", hosts)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_tunnel, args=(state, context, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield state
    finally:
        listener.close()


def _tunnel(state: Proxy, context: ssl.SSLContext, client: socket.socket) -> None:
    with contextlib.suppress(OSError), client:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES:
            head += client.recv(4096) or b"\r\n\r\n"
        wanted = re.match(rb"CONNECT ([^: ]+):443 HTTP/1.1\r\n", head)
        host = wanted[1].decode() if wanted else ""
        if host not in state.hosts:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        state.asked.append(host)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with (
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(("127.0.0.1", state.hosts[host])) as behind,
        ):
            # Two directions, one connection of TLS: reads and writes of it may go on at once.
            answers = threading.Thread(target=_copy, args=(behind, inside), daemon=True)
            answers.start()
            _copy(inside, behind)
            answers.join(60)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _certificates(names: list[str], folder: Path) -> ssl.SSLContext:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # What Python 3.13 asks of an authority's certificate by default, too.
    usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *key, "-subj", "/CN=private", *usage, "-keyout", "ca.key", "-out", "ca.crt")
    also = ("-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
    leaf = ("-addext", "basicConstraints=CA:FALSE", "-CA", "ca.crt", "-CAkey", "ca.key")
    openssl("req", "-x509", *key, "-subj", "/CN=hosts", *also, *leaf, "-keyout", "hosts.key", "-out", "hosts.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hosts.crt", folder / "hosts.key")
    return context
