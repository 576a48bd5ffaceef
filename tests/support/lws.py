"""LeaderWorkerSet (LWS) on an API server of the tests: its kinds, and its real controller with its webhooks."""

import json
import subprocess
import urllib.request
from base64 import b64encode
from pathlib import Path

import yaml

from tests.support.apiserver import ApiServer, binary, document, free_port
from tests.support.kubectl import PATIENCE, Kubectl, eventually


def install_kinds(server: ApiServer) -> None:
    """Makes the API server serve LWS's kinds."""
    admin, crds = _admin(server), str(document("crds-lws", "lws.yaml"))
    admin.run("apply", "--server-side", "-f", crds)
    wait = ("wait", "--for=condition=Established", "-f", crds)
    eventually(lambda: admin.run(*wait, check=False), "LWS's CRDs are established", PATIENCE)


def start_controller(server: ApiServer, folder: Path) -> None:
    """Starts it beside the API server, which calls its webhooks on this machine. `folder`: of its files."""
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=lws"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"]
    subprocess.run(request, cwd=folder, check=True, capture_output=True)
    webhooks, health = free_port(), free_port()
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    server.run("lws", f"--kubeconfig={server.kubeconfig}", f"--config={folder / 'config.yaml'}")
    eventually(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), "LWS's controller is ready", PATIENCE)
    certificate = b64encode((folder / "tls.crt").read_bytes()).decode()
    for manifest in yaml.safe_load_all(document("lws", "lws-webhooks.yaml").read_text()):
        for webhook in manifest["webhooks"]:
            url = f"https://127.0.0.1:{webhooks}{webhook['clientConfig']['service']['path']}"
            webhook["clientConfig"] = {"url": url, "caBundle": certificate}
            if any("pods" in rule["resources"] for rule in webhook["rules"]):  # as its chart has it
                named = {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}
                webhook["objectSelector"] = {"matchExpressions": [named]}
        _admin(server).apply(manifest)


def _admin(server: ApiServer) -> Kubectl:
    return Kubectl(str(server.kubeconfig), "default", binary("kubectl"))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
