"""Access to the API server as kubectl has it: by the current context of the files that KUBECONFIG names.

For a process outside a pod. A client certificate, a token, a file with a token, a name with a password, or a program
that gives tokens (`exec`); `auth-provider`, which Kubernetes 1.26 removed, is not read.
"""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from gymtrain_kube.access import DEFAULT_NAMESPACE, Access, Credentials, Fixed, TokenFile
from gymtrain_kube.errors import AccessError, UnreachableError

_DEFAULT_FILE = "~/.kube/config"
_PROGRAM_SECONDS = 15.0  # as a call to the API server has, which waits for it
_EXEC_GROUP = "client.authentication.k8s.io/"


def load() -> Access:
    """The access that the current context gives.

    Raises:
        AccessError: there is no kubeconfig, or none that can be used.
    """
    named = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name] or [_DEFAULT_FILE]
    paths = [Path(name).expanduser() for name in named]
    files = os.pathsep.join(map(str, paths))
    try:
        if not (there := [path for path in paths if path.is_file()]):
            raise AccessError("there is no such file")
        return _read(there)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError, AccessError) as error:
        raise AccessError(f"no usable kubeconfig ({files}): {error}. Set KUBECONFIG, or run in a pod") from error


class ExecPlugin:
    """A program that gives tokens, as `users[].user.exec` names it. It is run for the first call, again when its token
    has expired, and when the API server refuses the token."""

    def __init__(self, spec: Mapping[str, Any], folder: Path) -> None:
        """`folder` is the kubeconfig's.

        Raises:
            AccessError: it speaks another protocol.
        """
        self._version = str(spec.get("apiVersion"))
        if not self._version.startswith(_EXEC_GROUP):
            raise AccessError(f"exec: apiVersion {self._version} is none of {_EXEC_GROUP}")
        command = str(spec.get("command"))
        self._command = [str(folder / command) if os.sep in command else command, *map(str, spec.get("args") or [])]
        self._env = {str(one["name"]): str(one["value"]) for one in spec.get("env") or []}
        self._hint = str(spec.get("installHint") or "")
        self._one_at_a_time = asyncio.Lock()
        self._header = ""
        self._expires: float | None = None  # by time.time()

    async def authorization(self, refused: str = "") -> str:
        """The program's token."""
        async with self._one_at_a_time:
            expired = self._expires is not None and time.time() >= self._expires
            if not self._header or expired or self._header == refused:
                try:
                    self._take(await self._output())
                except (OSError, ValueError, LookupError, TypeError) as error:
                    text = f"exec: {self._command[0]}: {type(error).__name__}: {error}"
                    raise UnreachableError(f"{text}. {self._hint}" if self._hint else text) from error
            return self._header

    async def _output(self) -> bytes:
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            try:
                async with asyncio.timeout(_PROGRAM_SECONDS):
                    output, said = await process.communicate()
            except TimeoutError as error:
                raise TimeoutError(f"it has given no token after {_PROGRAM_SECONDS:g} s") from error
        finally:  # nobody waits any more
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            raise ValueError(f"it ended with {process.returncode}: {said.decode(errors='replace').strip()}")
        return output

    def _take(self, output: bytes) -> None:
        status = json.loads(output)["status"]
        if "token" not in status:
            raise ValueError("it gives no token; certificates of such programs are not used")
        self._header = f"Bearer {status['token']}"
        end = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(end).timestamp() if end else None


@dataclass(frozen=True)
class _Entry:
    """A cluster, a user or a context of a kubeconfig, with the folder that its relative paths begin at."""

    values: Mapping[str, Any]
    folder: Path

    def content(self, key: str) -> bytes | None:
        """What `key`-data holds, or the file that `key` names."""
        if data := self.values.get(f"{key}-data"):
            return base64.b64decode(data)
        return (self.folder / path).read_bytes() if (path := self.values.get(key)) else None


def _read(paths: Iterable[Path]) -> Access:
    current = ""
    entries: dict[tuple[str, str], _Entry] = {}
    for path in paths:  # as kubectl merges them: the first one wins
        document = yaml.safe_load(path.read_text()) or {}
        current = current or str(document.get("current-context") or "")
        for kind in ("context", "cluster", "user"):
            for one in document.get(f"{kind}s") or []:
                entries.setdefault((kind, str(one.get("name"))), _Entry(one.get(kind) or {}, path.parent))
    if not current:
        raise AccessError("it has no current context")

    def entry(kind: str, name: str) -> _Entry:
        try:
            return entries[kind, name]
        except KeyError:
            raise AccessError(f"it has no {kind} {name}") from None

    context = entry("context", current).values
    cluster = entry("cluster", str(context.get("cluster")))
    user = entry("user", str(context["user"])) if context.get("user") else _Entry({}, Path())
    url = str(cluster.values.get("server") or "").rstrip("/")
    if not url:
        raise AccessError(f"its cluster {context.get('cluster')} has no server")
    return Access(url, _credentials(user), _tls(cluster, user), str(context.get("namespace") or DEFAULT_NAMESPACE))


def _credentials(user: _Entry) -> Credentials:
    match user.values:
        case {"tokenFile": str(path)}:
            return TokenFile(user.folder / path)
        case {"token": str(token)} if token:
            return Fixed(f"Bearer {token}")
        case {"exec": dict(spec)}:
            return ExecPlugin(spec, user.folder)
        case {"username": name, "password": password}:
            return Fixed("Basic " + base64.b64encode(f"{name}:{password}".encode()).decode())
        case {"auth-provider": _}:
            raise AccessError("auth-provider is not supported: Kubernetes removed it in 1.26; use exec")
        case _:
            return Fixed()


def _tls(cluster: _Entry, user: _Entry) -> ssl.SSLContext:
    authority = cluster.content("certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.values.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = user.content("client-certificate"), user.content("client-key")
    if certificate and key:
        with NamedTemporaryFile() as file:  # ssl reads files only; nobody else may read this one
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context
