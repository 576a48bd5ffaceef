"""The API server as the benchmarks use it: objects, a watch, and its own count of writes."""

import base64
import json
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml

type Object = dict[str, Any]

_WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
_SERIES = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# What a claim can cost. Leases, nodes and the like change whether anybody claims or not.
_COUNTED = {"pods", "events", "sandboxes", "sandboxclaims", "sandboxwarmpools", "services", "networkpolicies"}


class KubeError(Exception):
    """The API server refused; the text says what and why."""


type Writes = Counter[str]


class Kube:
    """One API server, as the administrator."""

    def __init__(self, http: aiohttp.ClientSession, server: str, ca: bytes) -> None:
        self._http = http
        self.server = server
        self.ca = ca

    async def get(self, path: str) -> Object:
        """An object or a list."""
        return await self._call("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        """POST."""
        return await self._call("POST", path, body)

    async def apply(self, path: str, body: Object) -> Object:
        """Server-side apply."""
        query = "?fieldManager=benchmark&force=true"
        return await self._call("PATCH", path + query, body, kind="application/apply-patch+yaml")

    async def delete(self, path: str, body: Object | None = None) -> None:
        """One object, or all of a list; what is gone is no error."""
        with suppress(KeyError):
            await self._call("DELETE", path, body)

    async def count(self, path: str) -> int:
        """Objects of a list."""
        page = await self.get(f"{path}{'&' if '?' in path else '?'}limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Changes from now on, until the server ends it."""
        version = (await self.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
        url = f"{self.server}{path}?watch=1&timeoutSeconds=1800&resourceVersion={version}"
        async with self._http.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield str(event["type"]), dict(event["object"])

    async def exec(self, namespace: str, pod: str, container: str, command: list[str]) -> int:
        """A command by the API server's exec, over a websocket; its exit code."""
        query = [("container", container), ("stdout", "1"), ("stderr", "1"), *(("command", word) for word in command)]
        url = f"{self.server}/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        async with self._http.ws_connect(url, params=query, protocols=["v5.channel.k8s.io"]) as socket:
            async for message in socket:
                if isinstance(message.data, bytes) and message.data[:1] == b"\x03":
                    return exit_code(json.loads(message.data[1:]))
        raise KubeError(f"exec in {pod}: no status came")

    async def writes(self) -> Writes:
        """Writes since the API server started, by verb and resource."""
        async with self._http.get(f"{self.server}/metrics") as answer:
            return counted(await answer.text())

    async def _call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        async with self._http.request(method, self.server + path, data=data, headers=headers) as answer:
            text = await answer.read()
        if answer.status == 404:
            raise KeyError(path)
        if answer.status >= 400:
            raise KubeError(f"{method} {path}: HTTP {answer.status}: {text.decode(errors='replace')[:500]}")
        return dict(json.loads(text))


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[Kube]:
    """With the current context's certificate or token."""
    config = yaml.safe_load(kubeconfig.read_text())  # noqa: ASYNC240  before anything is measured
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    ca = _material(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=ca.decode())
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    if not headers:
        with TemporaryDirectory() as folder:
            certificate, key = Path(folder) / "client.crt", Path(folder) / "client.key"
            for file, name in ((certificate, "client-certificate"), (key, "client-key")):
                file.touch(mode=0o600)
                file.write_bytes(_material(user, name))
            tls.load_cert_chain(certificate, key)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=120)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as http:
        yield Kube(http, cluster["server"].rstrip("/"), ca)


def counted(metrics: str) -> Writes:
    """Successful writes in the API server's metrics, such as {"PATCH pods/status": 3}; conflicts under "409"."""
    found: Writes = Counter()
    for series, value in _SERIES.findall(metrics):
        labels = dict(_LABEL.findall(series))
        if labels.get("verb") not in _WRITES or labels.get("resource") not in _COUNTED:
            continue
        place = "/".join(filter(None, (labels["resource"], labels.get("subresource"))))
        if labels["code"].startswith("2"):
            found[f"{labels['verb']} {place}"] += round(float(value))
        elif labels["code"] == "409":
            found["409"] += round(float(value))
    return found


def exit_code(status: Mapping[str, Any]) -> int:
    """Of the Status that ends an exec."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    if not codes:
        raise KubeError(f"exec: {status.get('message')}")
    return codes[0]


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _material(entry: Mapping[str, str], name: str) -> bytes:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(entry[name]).read_bytes()
