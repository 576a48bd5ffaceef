"""Certificates and kubeconfigs, made by openssl: the standard library can't sign."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from dev.files import write
from dev.settings import (
    API_SERVICE_IP,
    CLUSTER_DOMAIN,
    NAME,
    NODE_IP,
    NODE_NAME,
    Settings,
)
from dev.shell import run

_DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", _DAYS)

_API_NAMES = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
_LOCAL = ["DNS:localhost", "IP:127.0.0.1"]

_USERS = {
    "admin": f"/O=system:masters/CN={NAME}-admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
    "kube-proxy": "/CN=system:kube-proxy",
    "kube-router": "/CN=kube-router",
}


class Authority:
    """One certificate authority, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self.certificate = folder / f"{name}.crt"

    def create(self) -> None:
        """The authority's own key and certificate."""
        key, subject = self._folder / f"{self._name}.key", f"/CN={NAME}-{self._name}"
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
        _openssl("req", "-x509", *_KEY, "-subj", subject, *usage, "-keyout", key, "-out", self.certificate)

    def sign(self, name: str, subject: str, *, names: Sequence[str] = ()) -> None:
        """A client certificate; with names, one that also serves under them."""
        usage = "clientAuth,serverAuth" if names else "clientAuth"
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={usage}"]
        if names:
            extensions += ["-addext", f"subjectAltName={','.join(names)}"]
        authority = ("-CA", self.certificate, "-CAkey", self._folder / f"{self._name}.key")
        files = ("-keyout", self._folder / f"{name}.key", "-out", self._folder / f"{name}.crt")
        _openssl("req", "-x509", *_KEY, *authority, "-subj", subject, *extensions, *files)


def _openssl(*arguments: str | Path) -> None:
    run(["openssl", *arguments], deadline=30)


def create(settings: Settings) -> None:
    """All keys and certificates of a new cluster."""
    folder = settings.pki
    folder.mkdir(mode=0o700, parents=True)
    authority = Authority(folder, "ca")
    authority.create()
    api = [f"DNS:{name}" for name in _API_NAMES] + [f"IP:{NODE_IP}", f"IP:{API_SERVICE_IP}", *_LOCAL]
    authority.sign("apiserver", "/CN=kube-apiserver", names=api)
    authority.sign("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    authority.sign("kubelet-server", f"/O=system:nodes/CN=system:node:{NODE_NAME}", names=[f"IP:{NODE_IP}", *_LOCAL])
    authority.sign("etcd", "/CN=etcd", names=_LOCAL)
    for user, subject in _USERS.items():
        authority.sign(user, subject)
    front = Authority(folder, "front-proxy-ca")
    front.create()
    front.sign("front-proxy-client", "/CN=front-proxy-client")
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", folder / "service-account.key")
    public = folder / "service-account.pub"
    _openssl("ec", "-in", folder / "service-account.key", "-pubout", "-out", public)


def write_kubeconfigs(settings: Settings, server: str) -> None:
    """One for each component, and the administrator's at its stable path."""
    for user in _USERS:
        path = settings.kubeconfig if user == "admin" else kubeconfig(settings, user)
        _write(settings, path, user, server)


def kubeconfig(settings: Settings, user: str) -> Path:
    """A component's kubeconfig."""
    return settings.pki / f"{user}.kubeconfig"


def _write(settings: Settings, path: Path, user: str, server: str) -> None:
    def data(file: str) -> str:
        return base64.b64encode((settings.pki / file).read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user}}],
        "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": data(f"{user}.crt"),
                    "client-key-data": data(f"{user}.key"),
                },
            }
        ],
    }
    # JSON is YAML: every reader of kubeconfigs takes it.
    write(path, json.dumps(document, indent=2), mode=0o600)
