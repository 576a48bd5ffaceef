"""The sandbox broker: Deployment, Service, identity and rights; and what its clients mount."""

from typing import Any

from gymtrain_api import agent_sandbox, labels, names, wiring
from gymtrain_api.sandboxes import SandboxBackend
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import deployment, digest, hash_input, metadata, service
from gymtrain_operator.manifests.pod import container, pod_template

CONTAINER = "broker"
_TOKEN_KEY = "token"  # noqa: S105 - the name of a key
_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
_GRACE_SECONDS = 40  # after SIGTERM it answers those who wait
_ALL_VERBS = ["get", "list", "watch", "create", "patch", "delete"]
_RBAC = "rbac.authorization.k8s.io"
_TOKEN_MOUNT: Object = {"name": "broker-token", "mountPath": wiring.BROKER_TOKEN_DIR, "readOnly": True}
_IDENTITY_MOUNT: Object = {
    "name": "identity",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    "readOnly": True,
}
# What kubelet would mount by itself, but into this container alone: no other part of a run talks to the API server.
_IDENTITY_VOLUME: Object = {
    "name": "identity",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    },
}


def broker_url(run: RunContext) -> str:
    """Returns the URL of the broker; empty if the run has no sandboxes."""
    return f"http://{names.broker(run.name)}:{wiring.BROKER_PORT}" if run.spec.sandboxes else ""


def broker_objects(run: RunContext, backend: SandboxBackend = "Pod", why: str = "") -> list[Object]:
    """Builds Service and Deployment; none if the run has no sandboxes. `why` this backend is kept for the status."""
    if run.spec.sandboxes is None:
        return []
    ports = {"http": wiring.BROKER_PORT}
    own = service(run, names.broker(run.name), labels.Role.BROKER, ports)
    own["metadata"]["annotations"] |= {labels.BROKER_IDENTITY: run.broker_identity}
    return [own, _deployment(run, backend, why)]


def broker_identity(run: RunContext, backend: SandboxBackend = "Pod") -> list[Object]:
    """Builds what has to be there before the Deployment: token, ServiceAccount, and its rights on sandboxes.

    The operator can create all of these and look at none. So they are named by the resource's uid, and rights by their
    rules too: another backend, or another release's broker, gets others beside those that were there before. The
    Secret's value is made when it is created.
    """
    if run.spec.sandboxes is None:
        return []
    name = run.broker_identity
    meta = metadata(run, name, labels.Role.BROKER)
    rules = _rules(backend)
    role = names.broker_role(run.name, digest(rules, run.uid))
    role_meta = metadata(run, role, labels.Role.BROKER)
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "stringData": {_TOKEN_KEY: ""}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": role_meta, "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": role_meta,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": run.namespace}],
        },
    ]


def sandbox_probe(run: RunContext) -> Object:
    """Builds an empty SandboxWarmPool: agent-sandbox's controller writes its status, if there is one and it serves
    pools."""
    name = names.sandbox_probe(run.name)
    return {
        "apiVersion": agent_sandbox.API_VERSION,
        "kind": agent_sandbox.POOL,
        "metadata": metadata(run, name),
        "spec": {"replicas": 0, "sandboxTemplateRef": {"name": name}},
    }


def _rules(backend: SandboxBackend) -> list[Object]:
    """Returns the broker's rights. With agent-sandbox it writes SandboxClaims and what they refer to, and only looks at
    pods."""
    if backend == "Pod":
        return [{"apiGroups": [""], "resources": ["pods"], "verbs": _ALL_VERBS}]
    group = [agent_sandbox.GROUP]
    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": group, "resources": [agent_sandbox.CLAIMS], "verbs": _ALL_VERBS},
        {"apiGroups": group, "resources": [agent_sandbox.TEMPLATES], "verbs": ["create", "delete"]},
        {"apiGroups": group, "resources": [agent_sandbox.POOLS], "verbs": ["list", "create", "delete"]},
    ]


def token_volume(run: RunContext) -> list[Object]:
    """Returns the volume of the broker's token in pods that use sandboxes; none if the run has no sandboxes."""
    if run.spec.sandboxes is None:
        return []
    return [{"name": "broker-token", "secret": {"secretName": run.broker_identity, "defaultMode": 0o440}}]


def token_mount(run: RunContext) -> list[Object]:
    """Returns the mount of that volume."""
    return [_TOKEN_MOUNT] if run.spec.sandboxes else []


def client_env(run: RunContext) -> list[Object]:
    """Returns the environment of pods that use sandboxes."""
    if run.spec.sandboxes is None:
        return []
    return [
        {"name": wiring.ENV_BROKER_URL, "value": broker_url(run)},
        {"name": wiring.ENV_BROKER_TOKEN_FILE, "value": wiring.BROKER_TOKEN_FILE},
    ]


def _deployment(run: RunContext, backend: SandboxBackend, why: str) -> Object:
    sandboxes = run.spec.sandboxes
    assert sandboxes is not None
    most = run.defaults.sandbox_max_resources
    health = {"httpGet": {"path": "/healthz", "port": wiring.BROKER_PORT}, "timeoutSeconds": 5}
    broker = container(
        run,
        CONTAINER,
        run.broker_image,
        ["python", "-m", "gymtrain_broker"],
        requests=_REQUESTS,
        role=labels.Role.BROKER,
        mounts=[_TOKEN_MOUNT, _IDENTITY_MOUNT],
        env=[
            {"name": wiring.ENV_SANDBOX_IMAGE, "value": run.sandbox_image},
            {"name": wiring.ENV_SANDBOX_PULL_POLICY, "value": run.defaults.pull_policy},
            *([{"name": wiring.ENV_USER_NAMESPACES, "value": "1"}] if run.defaults.user_namespaces else []),
            *([{"name": wiring.ENV_IMAGE_VOLUMES, "value": "1"}] if run.defaults.image_volumes else []),
            *([{"name": wiring.ENV_SANDBOX_MAX_RESOURCES, "value": most}] if most else []),
            {"name": wiring.ENV_BROKER_TOKEN_FILE, "value": wiring.BROKER_TOKEN_FILE},
            {"name": wiring.ENV_BROKER_TOKEN_SECRET, "value": run.broker_identity},
            {"name": wiring.ENV_SANDBOX_BACKEND, "value": backend},
        ],
        ports=[{"name": "http", "containerPort": wiring.BROKER_PORT}],
        # Imports take a second of CPU, which on a node where everything starts at once may be minutes.
        startupProbe=health | {"periodSeconds": 1, "failureThreshold": 600},
        readinessProbe={
            "httpGet": {"path": "/readyz", "port": wiring.BROKER_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
        # On a full node it answers late, and nobody gets a sandbox while it restarts: five minutes of silence.
        livenessProbe=health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 30},
    )
    pull = [{"name": secret.name} for secret in sandboxes.image_pull_secrets]
    secrets: dict[str, Any] = {"imagePullSecrets": pull} if pull else {}
    template = pod_template(
        run,
        labels.Role.BROKER,
        containers=[broker],
        volumes=[*token_volume(run), _IDENTITY_VOLUME],
        grace_seconds=_GRACE_SECONDS,
        service_account=run.broker_identity,
        **secrets,
    )
    # Two brokers at once would fill the pools twice; clients ask again while there is none.
    made = deployment(
        run,
        names.broker(run.name),
        labels.Role.BROKER,
        template,
        replicas=1,
        inputs=hash_input(sandboxes),
        recreate=True,
    )
    made["metadata"]["annotations"] |= {labels.SANDBOX_BACKEND: backend, labels.SANDBOX_BACKEND_REASON: why}
    return made
