"""Deployment of vLLM and its two Services."""

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import deployment, hash_input, service
from gymtrain_operator.manifests.pod import container, pod_template, shared_memory
from gymtrain_operator.manifests.sources import model_in_server_pods
from gymtrain_operator.manifests.volumes import checkpoint_mount, checkpoint_volume, compile_cache, is_shared_with_vllm

CONTAINER = "inference"
_REQUESTS = {"cpu": "250m", "memory": "2Gi"}


def inference_objects(run: RunContext) -> list[Object]:
    """Builds the Service over pods that hold the run's weights, the one over all pods, and the Deployment."""
    ports = {"http": wiring.INFERENCE_PORT}
    role = labels.Role.INFERENCE
    return [
        service(run, names.inference(run.name), role, ports),
        service(run, names.inference_pods(run.name), role, ports, headless=True),
        _deployment(run),
    ]


def _deployment(run: RunContext) -> Object:
    inference = run.spec.inference
    model = model_in_server_pods(run)
    shm_volume, shm_mount = shared_memory()
    mounts, volumes = [model.mount, shm_mount], [model.volume, shm_volume]
    if is_shared_with_vllm(run):
        mounts.append(checkpoint_mount(run, read_only=True))
        volumes.append(checkpoint_volume(run))
    cache = compile_cache(run, volumes)
    health = {"httpGet": {"path": "/health", "port": wiring.INFERENCE_PORT}, "timeoutSeconds": 5}
    deadline = run.spec.startup_deadline_seconds
    server = container(
        run,
        CONTAINER,
        run.inference_image,
        ["python", "-m", "gymtrain_vllm.serve"],
        mounts=[*mounts, *cache.mounts],
        requests=_REQUESTS,
        settings=inference,
        gpus=inference.gpus,
        ports=[{"name": "http", "containerPort": wiring.INFERENCE_PORT}],
        # Loading takes minutes. The startup deadline is the run's to enforce; here it only keeps the
        # kubelet from restarting a server that is still loading.
        startupProbe=health | {"periodSeconds": 2, "failureThreshold": max(30, deadline // 2)},
        # Ready means: holds weights of this run. A restarted server has none and gets no traffic.
        readinessProbe={
            "exec": {"command": ["python", "-I", "-S", "/opt/gymtrain/gymtrain_vllm/ready.py"]},
            "periodSeconds": 2,
            "timeoutSeconds": 8,  # it asks two questions of 3 s at most
            "failureThreshold": 1,
        },
        livenessProbe=health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12},
    )
    template = pod_template(
        run,
        labels.Role.INFERENCE,
        containers=[server],
        init=model.fetch,
        volumes=[*volumes, *cache.volumes],
        grace_seconds=15,
        template=inference.template,
    )
    inputs = (
        hash_input(inference, without=frozenset({"replicas"})),
        hash_input(run.spec.model),
        run.spec.trainer.image if model.fetch else None,
        run.spec.service_account_name,
    )
    return deployment(
        run,
        names.inference(run.name),
        labels.Role.INFERENCE,
        template,
        replicas=inference.replicas,
        inputs=inputs,
        # A rolling update needs the GPUs of one more pod, which nobody keeps spare.
        recreate=inference.gpus > 0,
    )
