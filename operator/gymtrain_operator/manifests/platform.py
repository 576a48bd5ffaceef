"""What containers get of the defaults of cluster and namespace: proxies, certificate authorities, variables, limits.

All containers but those in sandboxes do, init containers too: a model is fetched through the proxy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymtrain_api import names
from gymtrain_api.defaults import AppliedDefaults, tracing_of
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext

_VOLUME = "ca-bundle"
_DIR = "/etc/gymtrain/ca"
_FILE = "bundle.crt"
# OpenSSL and with it Python's ssl and httpx, requests, curl, git, Node.js, botocore, gRPC.
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
# A user that the cluster assigns isn't in /etc/passwd: Python's getpass fails, which torch asks for a cache's folder.
_USER_VARIABLES = ("USER", "LOGNAME")
_ALWAYS_DIRECT = ("localhost", "127.0.0.1", "::1", ".svc", ".cluster.local")


def env(run: RunContext, direct: Sequence[str] = ()) -> list[Object]:
    """Returns the variables. Those of the spec come after them, and win. `direct`: more hosts that are called without
    the proxy."""
    defaults = run.applied
    return [
        *({"name": name, "value": value} for name, value in _proxy(run, direct)),
        *({"name": name, "value": f"{_DIR}/{_FILE}"} for name in _CA_VARIABLES if defaults.ca_bundle),
        *({"name": name, "value": "gymtrain"} for name in _USER_VARIABLES if defaults.user_ids == "Assigned"),
        *({"name": variable.name, "value": variable.value} for variable in defaults.env),
    ]


def _proxy(run: RunContext, more: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each variable in both spellings, as some programs read only one of them."""
    proxy = run.applied.proxy
    if proxy is None:
        return
    direct = ",".join([*_ALWAYS_DIRECT, *_services(run), *more, *proxy.no_proxy])
    for name, value in (("HTTP_PROXY", proxy.http), ("HTTPS_PROXY", proxy.https), ("NO_PROXY", direct)):
        if value:
            yield name, value
            yield name.lower(), value


def _services(run: RunContext) -> list[str]:
    """Names the Services that pods of the run call by their short names, but for those of Gym servers, which preflight
    finds out: the trainer's own client takes no proxy, and Gym servers are told of one another."""
    return [
        names.gateway(run.name),
        names.inference(run.name),
        names.trainer(run.name),
        *([names.broker(run.name)] if run.spec.sandboxes else []),
        *([names.gateway_pods(run.name)] if tracing_of(run.spec, run.applied) else []),
    ]


def volumes(defaults: AppliedDefaults) -> list[Object]:
    """Returns the volumes of a pod."""
    bundle = defaults.ca_bundle
    if bundle is None:
        return []
    items = [{"key": bundle.key, "path": _FILE}]
    return [{"name": _VOLUME, "configMap": {"name": bundle.config_map, "items": items}}]


def mounts(defaults: AppliedDefaults) -> list[Object]:
    """Returns the mounts of a container."""
    return [{"name": _VOLUME, "mountPath": _DIR, "readOnly": True}] if defaults.ca_bundle else []


def with_required_limits(
    resources: dict[str, Any], defaults: AppliedDefaults, limits: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the resources with a limit of each resource of which the namespace's quotas require one, from `limits`.

    Without such a quota no limit is set that nobody asked for: it would end what works."""
    own = resources.get("limits") or {}
    missing = {name: limits[name] for name in defaults.required_limits if name not in own and name in limits}
    return resources | {"limits": {**own, **missing}} if missing else resources
