"""The servers of a resolved config: what they are, which others they call, whether they can run here and be trained on,
and whether the run can do without its agents."""

from pathlib import Path
from typing import Any

from nemo_gym.global_config import GlobalConfigDictParser
from omegaconf import DictConfig, OmegaConf

from gymtrain_api.spec import Gym
from gymtrain_api.wiring import HEAD_SERVER, DataIndex, GymServerInfo
from gymtrain_gym.config import code_scan
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.config.resolve import server_references
from gymtrain_gym.config.server_config import KINDS
from gymtrain_gym.errors import ConfigFileError
from gymtrain_gym.server import ray_modes, workspace

# Our images that have packages which the Gym image lacks, by the module that servers import.
_IMAGES = {"minisweagent": "gym-swe"} | dict.fromkeys(
    (
        "aviary",
        "evalplus",
        "gym_sokoban",
        "gymnasium",
        "jiwer",
        "nltk",
        "openenv",
        "sacrebleu",
        "tavily",
        "trafilatura",
        "whisper_normalizer",
    ),
    "gym-environments",
)
_VERIFY_CALLS = {"model_server": "model", "resources_server": "resources"}  # settings of an agent


def describe(config: DictConfig, gym: Gym, findings: Findings) -> list[GymServerInfo]:
    """The servers of `config`; what keeps them from running or from being trained on is added to `findings`."""
    servers = []
    roots = workspace.roots()
    for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config):
        inner = instance.get_inner_run_server_config_dict()
        implementation = str(next(iter(config[instance.name][instance.SERVER_TYPE])))
        references = {name for _, _, name in server_references(OmegaConf.to_container(inner))}
        code = _code(instance.name, Path(instance.SERVER_TYPE, implementation), inner, roots, gym, findings)
        servers.append(
            GymServerInfo(
                name=instance.name,
                kind=KINDS[instance.SERVER_TYPE],
                implementation=implementation,
                needs_ray=bool(code and code.needs_ray) and implementation not in ray_modes.THREADED,
                references=sorted(references),
            )
        )
    _check_names(servers, gym, findings)
    _check_agents(servers, config, findings)
    return servers


def check_mode_verify(config: Any, servers: list[GymServerInfo], index: DataIndex, findings: Findings) -> None:
    """Finds agents that the run can't do without, for spec.rollout.mode Verify.

    The trainer then does what a plain agent does in one turn: seed a session, ask the model server, post the answer to
    the resources server. So each agent that a row is for must name both servers, and no other server may call an agent.

    Args:
        config: the resolved Gym config as plain dicts.
        servers: its servers.
        index: the indexed datasets, which name the agents that matter.
        findings: what is wrong is added here.
    """
    agents = {server.name: server for server in servers if server.kind == "agent"}
    for name in sorted({name for file in (*index.train, *index.validation) for name in file.agents} & agents.keys()):
        settings = config[name]["responses_api_agents"][agents[name].implementation]
        for key, kind in _VERIFY_CALLS.items():
            _check_reference(name, key, kind, settings.get(key), servers, findings)
    for server in servers:
        called = sorted(agents.keys() & set(server.references))
        if server.kind != "agent" and called:
            findings.add(
                f"config key {server.name}",
                f"calls the agent {called[0]}, and with spec.rollout.mode Verify no agent runs: use mode Agent",
            )


def _code(
    name: str, folder: Path, inner: Any, roots: list[Path], gym: Gym, findings: Findings
) -> code_scan.ServerCode | None:
    where = f"config key {name}"
    try:
        found = workspace.server_folder(folder, inner.entrypoint, roots)
    except ConfigFileError as error:
        siblings = {path.name for root in roots for path in (root / folder.parent).glob("*/")}
        findings.add(where, f"{error}; {nearest(folder.name, siblings)}")
        return None
    code = code_scan.scan(found, inner.entrypoint, roots)
    server = gym.servers.get(name)
    if server and server.image:
        return code  # another image than this one runs it
    for module in code.missing_later:
        if module in _IMAGES:  # of others it isn't known whether they are ever imported
            findings.warn(
                where,
                f"some of its code imports the Python package {module}, which the Gym image lacks: rollouts fail if "
                f"that code runs. The image {_IMAGES[module]} has it: name that in spec.gym.image",
            )
    if code.missing_modules:
        images = {_IMAGES.get(module) for module in code.missing_modules}
        if len(images) == 1 and (image := images.pop()):
            remedy = f"name the image {image}, which has them, in spec.gym.image"
        else:
            listed = f"build an image with what {folder} lists"
            remedy = f"{listed} and name it in spec.gym.image or spec.gym.servers.{name}.image"
        findings.add(
            where, f"needs the Python packages {', '.join(code.missing_modules)}, which the Gym image lacks: {remedy}"
        )
    return code


def _check_names(servers: list[GymServerInfo], gym: Gym, findings: Findings) -> None:
    names = {server.name for server in servers} | {HEAD_SERVER}
    for name in gym.servers:
        if name not in names:
            findings.add(f"spec.gym.servers.{name}", f"names no server of the Gym config: {nearest(name, names)}")


def _check_agents(servers: list[GymServerInfo], config: DictConfig, findings: Findings) -> None:
    by_name = {server.name: server for server in servers}
    agents = [server for server in servers if server.kind == "agent"]
    if not agents:
        listed = ", ".join(f"{s.name} ({s.kind})" for s in servers) or "no server"
        findings.add(
            "spec.gym.configPaths",
            f"the config has no agent, only {listed}: add a config file with a server in responses_api_agents",
        )
    policies = {s.name for s in servers if s.kind == "model" and _gives_token_ids(config, s)}
    for agent in agents:
        reached: set[str] = set()
        todo = [agent.name]
        while todo:
            name = todo.pop()
            if name not in reached and name in by_name:
                reached.add(name)
                todo.extend(by_name[name].references)
        if not reached & policies:
            findings.add(
                f"config key {agent.name}",
                f"never calls the policy ({', '.join(sorted(policies)) or 'no server'}), so there is nothing to train: "
                "let its model_server name it",
            )


def _gives_token_ids(config: DictConfig, server: GymServerInfo) -> bool:
    return bool(config[server.name]["responses_api_models"][server.implementation].get("return_token_id_information"))


def _check_reference(
    agent: str, key: str, kind: str, reference: Any, servers: list[GymServerInfo], findings: Findings
) -> None:
    where = f"config key {agent}"
    name = reference.get("name") if isinstance(reference, dict) else None
    if not name:
        findings.add(
            where,
            f"has no {key}, which spec.rollout.mode Verify calls instead of the agent: use mode Agent for this agent",
        )
        return
    known = [server.name for server in servers if server.kind == kind]
    if name not in known:
        findings.add(f"{where}.{key}", f"{name!r} is no {kind} server of the config: {nearest(str(name), known)}")
