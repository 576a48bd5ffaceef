"""Where the API server is, and who asks: in a pod its ServiceAccount; outside see `kubeconfig`."""

import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gymtrain_kube.errors import AccessError, UnreachableError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"
_TOKEN_SECONDS = 30.0  # between two readings; the kubelet renews a token when a fifth of its life is left


class Credentials(Protocol):
    """What proves who asks."""

    async def authorization(self, refused: str = "") -> str:
        """The header Authorization; empty for none. Another one than `refused`, which got a 401, if there is one.

        Raises:
            UnreachableError: it can't be had now.
        """


class Fixed:
    """Credentials that stay the same."""

    def __init__(self, header: str = "") -> None:
        self._header = header

    async def authorization(self, refused: str = "") -> str:
        """As it was given."""
        return self._header


class TokenFile:
    """A token in a file, which somebody renews."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = ""
        self._read_at = -_TOKEN_SECONDS

    async def authorization(self, refused: str = "") -> str:
        """The token as the file had it some seconds ago, or has it now."""
        if (refused and refused == self._header) or time.monotonic() - self._read_at > _TOKEN_SECONDS:
            try:
                self.read()
            except (OSError, ValueError) as error:
                raise UnreachableError(f"can't read the token for the API server: {error}") from error
        return self._header

    def read(self) -> None:
        """Reads the file.

        Raises:
            OSError: it can't be read.
            ValueError: it holds no text.
        """
        self._header = f"Bearer {self._path.read_text().strip()}"
        self._read_at = time.monotonic()


@dataclass(frozen=True)
class Access:
    """The way to one API server.

    Attributes:
        url: without a path.
        credentials: who asks.
        tls: how its certificate is verified, and the certificate of who asks; False: not verified.
        namespace: the one that the kubeconfig or the pod names.
    """

    url: str
    credentials: Credentials = field(default_factory=Fixed)
    tls: ssl.SSLContext | bool = True
    namespace: str = DEFAULT_NAMESPACE


def in_pod() -> Access | None:
    """With the pod's ServiceAccount; None outside a pod, or where it has no token.

    Raises:
        AccessError: the ServiceAccount's files can't be used.
    """
    token, url = SERVICE_ACCOUNT / "token", url_in_pod()
    if not token.exists():
        return None
    if not url:
        raise AccessError("there is a ServiceAccount's token, but no variable KUBERNETES_SERVICE_HOST")
    return with_service_account(url, token, SERVICE_ACCOUNT / "ca.crt", SERVICE_ACCOUNT / "namespace")


def with_service_account(url: str, token: Path, ca: Path, namespace: Path | None = None) -> Access:
    """With the files of a ServiceAccount.

    Raises:
        AccessError: one of them can't be used.
    """
    credentials = TokenFile(token)
    try:
        tls = ssl.create_default_context(cafile=str(ca))
        credentials.read()
        own = namespace.read_text().strip() if namespace else DEFAULT_NAMESPACE
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise AccessError(f"can't read the ServiceAccount's files: {error}") from error
    return Access(url, credentials, tls, own)


def url_in_pod() -> str:
    """The API server's address as the kubelet's variables name it; empty outside a pod."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    bracketed = f"[{host}]" if ":" in host else host
    return f"https://{bracketed}:{port or 443}" if host else ""
