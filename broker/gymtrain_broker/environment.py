"""Files, addresses and images of this pod: the wiring contract's, or what the environment names.

| variable | default |
|---|---|
| GYMTRAIN_RUN_CONFIG | /etc/gymtrain/run/run.json |
| GYMTRAIN_BROKER_TOKEN_FILE | /etc/gymtrain/broker/token |
| GYMTRAIN_BROKER_TOKEN_SECRET | the name that the operator gives it |
| GYMTRAIN_BROKER_PORT | 8000 |
| GYMTRAIN_SANDBOX_IMAGE | gymtrain/sandbox:dev |
| GYMTRAIN_SANDBOX_PULL_POLICY | IfNotPresent |
| GYMTRAIN_SANDBOX_BACKEND | Pod; or AgentSandbox |
| GYMTRAIN_SANDBOX_MAX_RESOURCES | none; as cpu=8,memory=32Gi where the cluster has ceilings |
| GYMTRAIN_USER_NAMESPACES | none; 1 where the cluster has them |
| GYMTRAIN_IMAGE_VOLUMES | none; 1 where the cluster has them |
| GYMTRAIN_API_URL | the cluster's own API server, as the kubelet's variables name it |
| GYMTRAIN_API_TOKEN_FILE, GYMTRAIN_API_CA_FILE | those of the pod's ServiceAccount |
"""

import os
import re
from pathlib import Path

from gymtrain_api import names, wiring
from gymtrain_api.sandboxes import BACKENDS, SandboxBackend
from gymtrain_api.wiring import RunConfig
from gymtrain_broker.errors import StartError

_CEILING = re.compile(r"[a-z-]+=[0-9]+(\.[0-9]+)?[A-Za-z]{0,2}")


def run_config() -> Path:
    """`RunConfig` as JSON."""
    return Path(os.environ.get("GYMTRAIN_RUN_CONFIG", wiring.RUN_CONFIG_FILE))


def token_file() -> Path:
    """The run's token, which clients send."""
    return Path(os.environ.get(wiring.ENV_BROKER_TOKEN_FILE, wiring.BROKER_TOKEN_FILE))


def token_secret(run: RunConfig) -> str:
    """The Secret that this token is from."""
    return os.environ.get(wiring.ENV_BROKER_TOKEN_SECRET) or names.broker_identity(run.name, run.uid)


def port() -> int:
    """Where the broker listens."""
    return int(os.environ.get("GYMTRAIN_BROKER_PORT", wiring.BROKER_PORT))


def sandbox_image() -> str:
    """Image that brings the daemon."""
    return os.environ.get(wiring.ENV_SANDBOX_IMAGE, "gymtrain/sandbox:dev")


def pull_policy() -> str:
    """imagePullPolicy of that image."""
    return os.environ.get(wiring.ENV_SANDBOX_PULL_POLICY, "IfNotPresent")


def backend() -> SandboxBackend:
    """What sandboxes are made of.

    Raises:
        StartError: the variable names something else.
    """
    found = os.environ.get(wiring.ENV_SANDBOX_BACKEND, "Pod")
    if found not in BACKENDS:
        raise StartError(f"{wiring.ENV_SANDBOX_BACKEND} is {found}: it must be {' or '.join(BACKENDS)}")
    return found


def max_resources() -> dict[str, str]:
    """The most that a sandbox may ask for in this cluster, by the name of the resource.

    Raises:
        StartError: the variable has another form.
    """
    found = os.environ.get(wiring.ENV_SANDBOX_MAX_RESOURCES, "")
    parts = [part for part in found.split(",") if part]
    if not all(map(_CEILING.fullmatch, parts)):
        raise StartError(f"{wiring.ENV_SANDBOX_MAX_RESOURCES} is {found}: it must be as cpu=8,memory=32Gi")
    return dict(part.split("=") for part in parts)


def user_namespaces() -> bool:
    """Whether the cluster's nodes can give each pod a user namespace."""
    return os.environ.get(wiring.ENV_USER_NAMESPACES) == "1"


def image_volumes() -> bool:
    """Whether the cluster can mount an image as a volume."""
    return os.environ.get(wiring.ENV_IMAGE_VOLUMES) == "1"


def api_url() -> str:
    """Address of the API server; empty if the environment names none."""
    return os.environ.get("GYMTRAIN_API_URL", "").rstrip("/")


def api_address() -> tuple[str, int] | None:
    """Address of the API server, as the kubelet's variables tell each pod; None outside of a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return (host, int(port)) if host and port.isdigit() else None


def api_token_file() -> Path | None:
    """Token for the API server; None: that of the ServiceAccount."""
    return _path("GYMTRAIN_API_TOKEN_FILE")


def api_ca_file() -> Path | None:
    """Who may sign the API server's certificate; None: the ServiceAccount's."""
    return _path("GYMTRAIN_API_CA_FILE")


def _path(variable: str) -> Path | None:
    return Path(found) if (found := os.environ.get(variable)) else None
