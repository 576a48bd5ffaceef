"""LeaderWorkerSet (LWS) on an API server of the tests: its kinds, and its real controller with its webhooks."""

import json
from pathlib import Path

import yaml

from tests.support.apiserver import ApiServer, document, free_port
from tests.support.go_controller import (
    admin_of,
    call_here,
    configuration,
    install_crds,
    make_certificate,
    wait_until_ready,
)


def install_kinds(server: ApiServer) -> None:
    """Makes the API server serve LWS's kinds."""
    install_crds(server, "crds-lws", "lws.yaml", "LWS")


def start_controller(server: ApiServer, folder: Path) -> None:
    """Starts it beside the API server, which calls its webhooks on this machine. `folder`: of its files."""
    make_certificate(folder, "lws")
    webhooks, health = free_port(), free_port()
    config = configuration("config.lws.x-k8s.io/v1alpha1", folder, webhooks, health)
    (folder / "config.yaml").write_text(json.dumps(config))
    server.run("lws", f"--kubeconfig={server.kubeconfig}", f"--config={folder / 'config.yaml'}")
    wait_until_ready(health, "LWS")
    for manifest in yaml.safe_load_all(document("lws", "lws-webhooks.yaml").read_text()):
        for webhook in manifest["webhooks"]:
            call_here(webhook, webhooks, folder)
            if any("pods" in rule["resources"] for rule in webhook["rules"]):  # as its chart has it
                named = {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}
                webhook["objectSelector"] = {"matchExpressions": [named]}
        admin_of(server).apply(manifest)
