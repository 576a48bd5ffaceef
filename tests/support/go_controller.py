"""A controller of another project beside an API server: its kinds, its certificate, its webhooks."""

import subprocess
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import ApiServerError, Programs, binary, document
from tests.support.kubectl import PATIENCE, Kubectl, eventually

_CERTIFICATE, _KEY = "tls.crt", "tls.key"


def need(program: str, project: str, binaries: str = "") -> None:
    """Skips the test where the controller was not built, which takes minutes: `dev/run binaries BINARIES`, by default
    the program's name."""
    try:
        binary(program)
    except ApiServerError as error:
        pytest.skip(f"{project}'s controller is tried where it was built ({error} {binaries or program})")


def admin_of(server: Programs) -> Kubectl:
    """kubectl with all rights."""
    return Kubectl(str(server.kubeconfig), "default", binary("kubectl"))


def install_crds(server: Programs, folder: str, file: str, project: str) -> None:
    """Makes the API server serve a project's kinds."""
    admin, crds = admin_of(server), str(document(folder, file))
    admin.run("apply", "--server-side", "-f", crds)
    wait = ("wait", "--for=condition=Established", "-f", crds)
    eventually(lambda: admin.run(*wait, check=False), f"{project}'s CRDs are established", PATIENCE)


def make_certificate(folder: Path, name: str) -> None:
    """For webhooks on this machine, as tls.crt and tls.key."""
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", _KEY, "-out", _CERTIFICATE]
    subprocess.run(request, cwd=folder, check=True, capture_output=True)


def configuration(api: str, folder: Path, webhooks: int, health: int) -> dict[str, Any]:
    """What controllers of Kubernetes' SIGs have in common. `webhooks`, `health`: ports."""
    return {
        "apiVersion": api,
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }


def wait_until_ready(health: int, project: str) -> None:
    """Waits for the controller's probe at a port."""
    eventually(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), f"{project}'s controller is ready", PATIENCE)


def call_here(webhook: dict[str, Any], port: int, folder: Path) -> None:
    """Lets the API server call a webhook at a port of this machine in place of a Service."""
    url = f"https://127.0.0.1:{port}{webhook['clientConfig']['service']['path']}"
    certificate = b64encode((folder / _CERTIFICATE).read_bytes()).decode()
    webhook["clientConfig"] = {"url": url, "caBundle": certificate}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
