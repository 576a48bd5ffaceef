"""vLLM and its two Services: a Deployment of servers, or a LeaderWorkerSet where each of them spans several pods
(decision 35)."""

from typing import Any

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import deployment, disruption_budget, hash_input, pod_groups, service
from gymtrain_operator.manifests.pod import NOT_FOR_SAVING, container, gpu_limits, pod_template, shared_memory
from gymtrain_operator.manifests.run_token import TOKEN_ENV, TOKEN_MOUNT, token_secret, token_volume
from gymtrain_operator.manifests.sources import model_in_server_pods
from gymtrain_operator.manifests.volumes import checkpoint_mount, checkpoint_volume, compile_cache, is_shared_with_vllm

CONTAINER = "inference"
_REQUESTS = {"cpu": "250m", "memory": "2Gi"}
_LIMITS = {"cpu": "4", "memory": "8Gi"}
# Where the other pods of a group reach this one; vLLM would look for the address of a way to the internet.
_OWN_ADDRESS: Object = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def inference_objects(run: RunContext) -> list[Object]:
    """Builds the token of the servers, the Service over those that hold the run's weights, the one over all, and the
    servers. A drain of nodes takes one of them at a time: the next when its successor holds the weights."""
    ports = {"http": wiring.INFERENCE_PORT}
    role = labels.Role.INFERENCE
    return [
        token_secret(run),
        service(run, names.inference(run.name), role, ports),
        service(run, names.inference_pods(run.name), role, ports, headless=True),
        disruption_budget(run, names.disruption_budget(run.name), role),
        _deployment(run) if run.spec.inference.nodes == 1 else _groups(run),
    ]


def _deployment(run: RunContext) -> Object:
    inference = run.spec.inference
    return deployment(
        run,
        names.inference(run.name),
        labels.Role.INFERENCE,
        _pods(run, labels.Role.INFERENCE, {"env": [TOKEN_ENV], **_serving(run)}),
        replicas=inference.replicas,
        inputs=_inputs(run),
        # A rolling update needs the GPUs of one more pod, which nobody keeps spare.
        recreate=inference.gpus > 0,
    )


def _groups(run: RunContext) -> Object:
    """Builds servers of several pods. The leader of each is a vLLM pod like any other; the workers have a role of their
    own, so that no Service, probe or weight transport takes one for a server."""
    env = [_OWN_ADDRESS]
    return pod_groups(
        run,
        names.inference_groups(run.name),
        labels.Role.INFERENCE,
        _pods(run, labels.Role.INFERENCE, {"env": [*env, TOKEN_ENV], **_serving(run)}),
        _pods(run, labels.Role.INFERENCE_WORKER, {"env": env}),
        replicas=run.spec.inference.replicas,
        size=run.spec.inference.nodes,
        inputs=_inputs(run),
    )


def _inputs(run: RunContext) -> tuple[object, ...]:
    fetches = bool(model_in_server_pods(run).fetch)
    return (
        hash_input(run.spec.inference, without=frozenset({"replicas", "min_replicas"})),
        hash_input(run.spec.model),
        run.spec.trainer.image if fetches else None,
        run.spec.service_account_name,
    )


def _serving(run: RunContext) -> dict[str, Any]:
    """Returns what the container of a pod with the server's routes has: port and probes."""
    health = {"httpGet": {"path": "/health", "port": wiring.INFERENCE_PORT}, "timeoutSeconds": 5}
    deadline = run.spec.startup_deadline_seconds
    return {
        "ports": [{"name": "http", "containerPort": wiring.INFERENCE_PORT}],
        # Loading takes minutes. The startup deadline is the run's to enforce; here it only keeps the
        # kubelet from restarting a server that is still loading.
        "startupProbe": health | {"periodSeconds": 2, "failureThreshold": max(30, deadline // 2)},
        # Ready means: holds weights of this run. A restarted server has none and gets no traffic.
        "readinessProbe": {
            "exec": {"command": ["python", "-I", "-S", "/opt/gymtrain/gymtrain_vllm/ready.py"]},
            "periodSeconds": 2,
            "timeoutSeconds": 8,  # it asks two questions of 3 s at most
            "failureThreshold": 1,
        },
        "livenessProbe": health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12},
    }


def _pods(run: RunContext, role: labels.Role, more: dict[str, Any]) -> dict[str, Any]:
    inference = run.spec.inference
    model = model_in_server_pods(run)
    shm_volume, shm_mount = shared_memory()
    mounts, volumes = [model.mount, shm_mount], [model.volume, shm_volume]
    if role == labels.Role.INFERENCE:  # workers have no routes
        mounts, volumes = [*mounts, TOKEN_MOUNT], [*volumes, token_volume(run)]
    if is_shared_with_vllm(run):
        mounts.append(checkpoint_mount(run, read_only=True))
        volumes.append(checkpoint_volume(run))
    cache = compile_cache(run, volumes)
    process = container(
        run,
        CONTAINER,
        run.inference_image,
        ["python", "-m", "gymtrain_vllm.serve"],
        mounts=[*mounts, *cache.mounts],
        requests=_REQUESTS,
        limits=_LIMITS,
        settings=inference,
        gpu_limits=gpu_limits(run, inference),
        role=role,
        **more,
    )
    return pod_template(
        run,
        role,
        containers=[process],
        init=model.fetch,
        volumes=[*volumes, *cache.volumes],
        grace_seconds=15,
        annotations=NOT_FOR_SAVING,
        template=inference.template,
    )
