"""Deployment of the gateway and its two Services."""

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import deployment, hash_input, service
from gymtrain_operator.manifests.pod import container, pod_template

CONTAINER = "gateway"
_REQUESTS = {"cpu": "50m", "memory": "192Mi"}
_GRACE_SECONDS = 40  # after SIGTERM the gateway finishes what is in flight


def gateway_objects(run: RunContext) -> list[Object]:
    """Builds the Service that Gym servers call, the one over all pods, and the Deployment."""
    ports = {"http": wiring.GATEWAY_PORT}
    role = labels.Role.GATEWAY
    return [
        service(run, names.gateway(run.name), role, ports),
        service(run, names.gateway_pods(run.name), role, ports, headless=True),
        _deployment(run),
    ]


def _deployment(run: RunContext) -> Object:
    gateway = run.spec.gateway
    health = {"httpGet": {"path": "/health", "port": wiring.GATEWAY_PORT}, "timeoutSeconds": 5}
    server = container(
        run,
        CONTAINER,
        run.gateway_image,
        ["python", "-m", "gymtrain_gateway"],
        requests=_REQUESTS,
        settings=gateway,
        role=labels.Role.GATEWAY,
        ports=[{"name": "http", "containerPort": wiring.GATEWAY_PORT}],
        # Imports take a second of CPU, which on a node where everything starts at once may be minutes.
        startupProbe=health | {"periodSeconds": 1, "failureThreshold": 600},
        # Ready means: knows a vLLM pod with the run's weights. So the first sync comes before it, never after.
        readinessProbe={
            "httpGet": {"path": "/ready", "port": wiring.GATEWAY_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            # While the weights change no pod may have them for a moment; calls wait in the gateway then.
            "failureThreshold": 3,
        },
        # On a full node it answers late, and a restart loses every rollout in flight: five minutes of silence.
        livenessProbe=health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 30},
    )
    template = pod_template(
        run,
        labels.Role.GATEWAY,
        containers=[server],
        grace_seconds=_GRACE_SECONDS,
        template=gateway.template,
    )
    return deployment(
        run,
        names.gateway(run.name),
        labels.Role.GATEWAY,
        template,
        replicas=gateway.replicas,
        inputs=(hash_input(gateway, without=frozenset({"replicas"})), run.spec.service_account_name),
    )
