"""Deployment and Service of each Gym server, the head among them."""

from gymtrain_api import labels, names, wiring
from gymtrain_api.merge import merge
from gymtrain_api.spec import GymServer
from gymtrain_api.status import ServerKind
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests import tracing
from gymtrain_operator.manifests.broker import broker_url, client_env, token_mount, token_volume
from gymtrain_operator.manifests.config_maps import GYM_CONFIG_MOUNT, gym_config_volume, hosted_config
from gymtrain_operator.manifests.context import GymServers, RunContext
from gymtrain_operator.manifests.objects import deployment, digest, hash_input, service
from gymtrain_operator.manifests.pod import container, pod_template, shared_memory

CONTAINER = "gym"
# Resident memory measured: head 136 MB, model 157, agent 211, resources 274.
_REQUESTS = {
    "head": {"cpu": "10m", "memory": "160Mi"},
    "model": {"cpu": "50m", "memory": "192Mi"},
    "agent": {"cpu": "50m", "memory": "256Mi"},
    "resources": {"cpu": "50m", "memory": "320Mi"},
}
_RAY_REQUESTS = {"cpu": "100m", "memory": "1Gi"}  # Ray's own processes add 721 MB
# Before SIGTERM, so that the Service has forgotten the pod by the time that it stops listening.
_SECONDS_TO_LEAVE_SERVICE = 3
_DRAIN_SECONDS = 30


def gym_objects(run: RunContext, gym: GymServers) -> list[Object]:
    """Builds Services and Deployments of all Gym servers."""
    referenced = {name for server in gym.servers for name in server.references}
    objects: list[Object] = []
    for name, kind in gym_server_kinds(run, gym).items():
        # The state of an episode lives in one process of the server, keyed by a session that only that
        # process knows: calls of one client pod must not be spread. The trainer's calls of an agent are
        # whole episodes, which may be.
        sticky = kind != "agent" or name in referenced
        objects.append(_service(run, name, sticky=sticky))
        objects.append(_deployment(run, gym, name, kind))
    return objects


def gym_server_kinds(run: RunContext, gym: GymServers) -> dict[str, ServerKind]:
    """Returns the kind (agent, resources, model, head) of every Gym server that gets pods, by name."""
    return {wiring.HEAD_SERVER: "head", **{server.name: server.kind for server in gym.with_pods(run)}}


def gym_settings(run: RunContext, name: str) -> GymServer:
    """Returns the pod settings of one server; where it has none, those of all Gym servers."""
    own = run.spec.gym.servers.get(name, GymServer())
    every = run.spec.gym
    return GymServer(
        replicas=own.replicas,
        image=own.image or every.image,
        resources=own.resources if own.resources is not None else every.resources,
        template=merge(every.template or {}, own.template or {}) or None,
    )


def gym_pod_sets(run: RunContext, gym: GymServers) -> dict[str, str]:
    """Returns the pod set of every Gym server by the server's name: servers that need the same share one."""
    sets: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, kind in sorted(gym_server_kinds(run, gym).items()):
        same = f"gym-{'ray' if _uses_ray(gym, name) else kind}"
        own = run.spec.gym.servers.get(name)
        if own is not None and (own.resources is not None or own.template):
            same = first.setdefault(digest(same, own.resources, own.template), names.pod_set_of_gym_server(name))
        sets[name] = same
    return sets


def _uses_ray(gym: GymServers, name: str) -> bool:
    return any(server.needs_ray for server in gym.servers if server.name == name)


def server_label(name: str) -> dict[str, str]:
    """Returns the label of the pods of one server."""
    return {labels.SERVER: names.gym_server_label(name)}


def _service(run: RunContext, name: str, *, sticky: bool) -> Object:
    ports = {"http": wiring.GYM_PORT}
    service_name = run.gym_server(name)
    return service(run, service_name, labels.Role.GYM, ports, selector=server_label(name), sticky=sticky)


def _deployment(run: RunContext, gym: GymServers, name: str, kind: ServerKind) -> Object:
    settings = gym_settings(run, name)
    uses_ray = _uses_ray(gym, name)
    uses_sandboxes = kind in {"agent", "resources"}
    mounts, volumes = [GYM_CONFIG_MOUNT], [gym_config_volume(run)]
    if uses_ray:  # its objects are kept in shared memory
        shm_volume, shm_mount = shared_memory()
        mounts, volumes = [*mounts, shm_mount], [*volumes, shm_volume]
    if uses_sandboxes:
        mounts, volumes = [*mounts, *token_mount(run)], [*volumes, *token_volume(run)]
    check = {"httpGet": {"path": "/", "port": wiring.GYM_PORT}, "timeoutSeconds": 5}
    server = container(
        run,
        CONTAINER,
        settings.image or run.gym_image,
        ["python", "-m", "gymtrain_gym.launcher"],
        mounts=mounts,
        env=[
            {"name": wiring.ENV_GYM_SERVER, "value": name},
            *(client_env(run) if uses_sandboxes else []),
            *tracing.env(run, labels.Role.GYM, f"gym-{name}"),
            *run.spec.gym.env,
        ],
        requests=_RAY_REQUESTS if uses_ray else _REQUESTS[kind],
        settings=settings,
        role=labels.Role.GYM,
        # NeMo Gym's own client takes no proxy, but agents bring others: LiteLLM's asks the proxy for the model server.
        direct=[run.gym_server(other) for other in gym_server_kinds(run, gym)],
        ports=[{"name": "http", "containerPort": wiring.GYM_PORT}],
        # Imports take 4-6 s on an idle core and minutes on a node where everything starts at once.
        startupProbe=check | {"periodSeconds": 2, "failureThreshold": 300},
        readinessProbe=check | {"periodSeconds": 5, "failureThreshold": 3},
        # A busy server answers late, and a restart loses every episode in flight: five minutes of silence.
        livenessProbe=check | {"periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 15},
        lifecycle={"preStop": {"exec": {"command": ["sleep", str(_SECONDS_TO_LEAVE_SERVICE)]}}},
    )
    template = pod_template(
        run,
        labels.Role.GYM,
        containers=[server],
        volumes=volumes,
        pod_labels=server_label(name),
        grace_seconds=_DRAIN_SECONDS,
        template=settings.template,
        pod_set=gym_pod_sets(run, gym)[name],
    )
    return deployment(
        run,
        run.gym_server(name),
        labels.Role.GYM,
        template,
        replicas=settings.replicas,
        selector=server_label(name),
        inputs=(_inputs(run, settings), hosted_config(run, gym)),
    )


def _inputs(run: RunContext, settings: GymServer) -> object:
    """Returns what of the spec the pods of a server are made from."""
    own = (hash_input(settings, without=frozenset({"replicas"})), run.spec.gym.env, run.spec.service_account_name)
    return own if run.spec.sandboxes is None else (*own, broker_url(run))
