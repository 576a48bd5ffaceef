"""The two ConfigMaps of a run: its own settings, and the resolved Gym config."""

import copy
import json
from collections.abc import Mapping
from functools import lru_cache

import yaml

from gymtrain_api import names, wiring
from gymtrain_api.defaults import sandboxes_with_defaults
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.broker import broker_url
from gymtrain_operator.manifests.context import GymServers, RunContext
from gymtrain_operator.manifests.objects import digest, metadata, stamped

GYM_CONFIG_MOUNT: Object = {"name": "gym", "mountPath": wiring.GYM_CONFIG_DIR, "readOnly": True}
GYM_CONFIG_KEY = "config.yaml"
PREFLIGHT_KEY = "preflight.json"
RUN_KEY = "run.json"

# Of so many runs, and no longer ones: a config has some 3,000 characters, and others' must not fill the memory.
_REMEMBERED = 2000
_LONGEST_REMEMBERED = 16_384

_SECTION = {"agent": "responses_api_agents", "resources": "resources_servers", "model": "responses_api_models"}


def gym_config_volume(run: RunContext) -> Object:
    """Returns the volume with the resolved Gym config."""
    return {"name": "gym", "configMap": {"name": names.gym_config(run.name)}}


def run_config(run: RunContext, gym: GymServers | None) -> wiring.RunConfig:
    """Builds `run.json`; without `gym` (preflight) it names no servers of the Gym config."""
    agents = [server.name for server in gym.with_pods(run) if server.kind == "agent"] if gym else []
    return wiring.RunConfig(
        name=run.name,
        namespace=run.namespace,
        uid=run.uid,
        lineage=run.lineage or run.uid,
        spec=sandboxes_with_defaults(run.spec, run.applied),
        inference_url=inference_url(run),
        inference_pods_host=names.inference_pods(run.name),
        gateway_url=gateway_url(run),
        gateway_pods_host=names.gateway_pods(run.name),
        broker_url=broker_url(run),
        trainer_host=names.trainer(run.name),
        agents={agent: gym_url(run, agent) for agent in agents},
        verifiers=verifiers(run, gym) if gym else {},
    )


def run_config_map(run: RunContext, gym: GymServers | None) -> Object:
    """Builds the ConfigMap <run>-run."""
    config = run_config(run, gym).model_dump(mode="json", by_alias=True)
    return _config_map(run, names.run_config(run.name), {RUN_KEY: json.dumps(config, indent=1, sort_keys=True)})


def gym_config_map(run: RunContext, gym: GymServers, preflight_hash: str, preflight: Mapping[str, object]) -> Object:
    """Builds the ConfigMap <run>-gym: the config with this run's hosts, and preflight's verdict.

    `preflight_hash` is the hash of the inputs that the verdict is about; it stands in the verdict too,
    so that a verdict is never taken for another spec.
    """
    config = _as_yaml(json.dumps(hosted_config(run, gym), ensure_ascii=False))
    verdict = json.dumps({"hash": preflight_hash, **preflight}, separators=(",", ":"))
    return _config_map(run, names.gym_config(run.name), {GYM_CONFIG_KEY: config, PREFLIGHT_KEY: verdict})


def _as_yaml(text: str) -> str:
    """Returns a JSON document as YAML, which takes a third of the time of a plan, and is the same at each look."""
    return _remembered_yaml(text) if len(text) <= _LONGEST_REMEMBERED else _remembered_yaml.__wrapped__(text)


@lru_cache(maxsize=_REMEMBERED)
def _remembered_yaml(text: str) -> str:
    return yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True)


def hosted_config(run: RunContext, gym: GymServers) -> dict[str, object]:
    """Returns the resolved Gym config in which every server is found at its Service."""
    config = copy.deepcopy(gym.config)
    head = {"host": run.gym_server(wiring.HEAD_SERVER), "port": wiring.GYM_PORT}
    config[wiring.HEAD_SERVER] = (config.get(wiring.HEAD_SERVER) or {}) | head
    for server in gym.servers:
        inner = config[server.name][_SECTION[server.kind]][server.implementation]
        inner["host"] = run.gym_server(server.name)
        inner["port"] = wiring.GYM_PORT
    return config


def verifiers(run: RunContext, gym: GymServers) -> dict[str, wiring.VerifyRoute]:
    """Returns what stands in for each agent in mode Verify that has both servers; preflight has said which lack one."""
    if not run.verifies:
        return {}
    routes = {}
    for server in gym.servers:
        if server.kind != "agent":
            continue
        settings = gym.config[server.name][_SECTION[server.kind]][server.implementation]
        model, resources = (_referred(settings.get(key)) for key in ("model_server", "resources_server"))
        if model and resources:
            routes[server.name] = wiring.VerifyRoute(
                model_url=gym_url(run, model), resources_url=gym_url(run, resources)
            )
    return routes


def _referred(reference: object) -> str:
    """Returns the name of the server that a setting of a Gym server refers to; empty if it refers to none."""
    return str(reference.get("name") or "") if isinstance(reference, Mapping) else ""


def gym_url(run: RunContext, server: str) -> str:
    """Returns the URL of a Gym server inside the cluster."""
    return f"http://{run.gym_server(server)}:{wiring.GYM_PORT}"


def gateway_url(run: RunContext) -> str:
    """Returns the URL of the gateway."""
    return f"http://{names.gateway(run.name)}:{wiring.GATEWAY_PORT}"


def inference_url(run: RunContext) -> str:
    """Returns the URL of the vLLM pods that hold the run's weights."""
    return f"http://{names.inference(run.name)}:{wiring.INFERENCE_PORT}"


def _config_map(run: RunContext, name: str, data: dict[str, str]) -> Object:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(run, name), "data": data}
    return stamped(manifest, digest(data))
