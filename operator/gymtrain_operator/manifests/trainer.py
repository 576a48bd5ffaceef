"""The training Job of one attempt, and the Service that names its pods."""

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.broker import client_env, token_mount, token_volume
from gymtrain_operator.manifests.config_maps import GYM_CONFIG_MOUNT, gym_config_volume
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import digest, hash_input, metadata, service, stamped
from gymtrain_operator.manifests.pod import NOT_FOR_SAVING, container, gpu_limits, pod_template, shared_memory
from gymtrain_operator.manifests.run_token import TOKEN_ENV, TOKEN_MOUNT
from gymtrain_operator.manifests.run_token import token_volume as run_token_volume
from gymtrain_operator.manifests.sources import (
    INDEX_MOUNT,
    INDEX_VOLUME,
    data_init,
    dataset_mounts,
    model_in_server_pods,
    token_env,
)
from gymtrain_operator.manifests.volumes import checkpoint_mount, checkpoint_volume, data_storage, resume_in_trainer

CONTAINER = "trainer"
_REQUESTS = {"cpu": "250m", "memory": "2Gi"}
_LIMITS = {"cpu": "4", "memory": "8Gi"}
# Changes nothing but the reason of the Job's end, which outlives the pods: PodFailurePolicy instead of
# BackoffLimitExceeded where the cluster took a pod away.
_BY_THE_CLUSTER = {
    "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


def push_keys(run: RunContext) -> Object:
    """Returns the field of a container that gets the keys of `push`: under names that only the push looks for."""
    push = run.spec.trainer.push
    if push is None or push.secret is None:
        return {}
    return {"envFrom": [{"prefix": wiring.PUSH_PREFIX, "secretRef": {"name": push.secret.name}}]}


def trainer_service(run: RunContext) -> Object:
    """Builds the headless Service of the trainer's pods. They find each other before they are ready."""
    ports = {"http": wiring.TRAINER_PORT, "rendezvous": wiring.RENDEZVOUS_PORT}
    return service(run, names.trainer(run.name), labels.Role.TRAINER, ports, headless=True)


def trainer_job(run: RunContext, attempt: int) -> Object:
    """Builds the Job of one attempt: one pod a node, and none is tried again. When one pod fails all do, and the
    operator starts the next attempt from the last checkpoint."""
    trainer = run.spec.trainer
    model = model_in_server_pods(run)
    sources = dataset_mounts(run)
    resume = resume_in_trainer(run)
    shm_volume, shm_mount = shared_memory()
    fetched = data_storage(run, [model.volume, checkpoint_volume(run), *resume.volumes, *sources.volumes])
    main = container(
        run,
        CONTAINER,
        run.training_image,
        trainer.command or ["python", "-m", "gymtrain_trainer"],
        mounts=[
            model.mount,
            INDEX_MOUNT | {"readOnly": True},
            GYM_CONFIG_MOUNT,
            checkpoint_mount(run),
            *resume.mounts,
            shm_mount,
            TOKEN_MOUNT,
            *token_mount(run),
            *fetched.read,
            *sources.mounts,  # of a dataset on a volume only the index is made; its rows are read where they are
        ],
        env=[
            {"name": wiring.ENV_ATTEMPT, "value": str(attempt)},
            {"name": wiring.ENV_NODES, "value": str(trainer.nodes)},
            {
                "name": wiring.ENV_MASTER_HOST,
                "value": f"{names.trainer_job(run.name, attempt)}-0.{names.trainer(run.name)}",
            },
            TOKEN_ENV,  # for vLLM's control routes
            *client_env(run),  # it tells the broker which tasks come next
            *token_env(run),
            *trainer.env,
        ],
        requests=_REQUESTS,
        limits=_LIMITS,
        settings=trainer,
        gpu_limits=gpu_limits(run, trainer),
        role=labels.Role.TRAINER,
        **push_keys(run),
        ports=[
            {"name": "http", "containerPort": wiring.TRAINER_PORT},
            {"name": "rendezvous", "containerPort": wiring.RENDEZVOUS_PORT},
        ],
    )
    attempt_label = {labels.ATTEMPT: str(attempt)}
    template = pod_template(
        run,
        labels.Role.TRAINER,
        containers=[main],
        init=[*model.fetch, data_init(run, GYM_CONFIG_MOUNT, fetched.read)],
        volumes=[
            model.volume,
            INDEX_VOLUME,
            gym_config_volume(run),
            checkpoint_volume(run),
            *resume.volumes,
            shm_volume,
            run_token_volume(run, optional=True),
            *token_volume(run),
            *fetched.volumes,
            *sources.volumes,
        ],
        pod_labels=attempt_label,
        grace_seconds=wiring.TRAINER_GRACE_SECONDS,
        annotations=NOT_FOR_SAVING,
        template=trainer.template,
        subdomain=names.trainer(run.name),
        restartPolicy="Never",
    )
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(run, names.trainer_job(run.name, attempt), labels.Role.TRAINER, **attempt_label),
        "spec": {
            "completionMode": "Indexed",
            "completions": trainer.nodes,
            "parallelism": trainer.nodes,
            "backoffLimit": 0,
            "podFailurePolicy": _BY_THE_CLUSTER,
            "template": template,
        },
    }
    return stamped(manifest, digest(hash_input(run.spec.trainer)))
