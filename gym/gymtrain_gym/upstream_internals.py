"""What NeMo Gym, uvicorn, Ray and mini-swe-agent don't offer publicly, and the Gym image uses all the same.

No other module of this package replaces a function of theirs or uses a private name. Tests check that, and look up
each name of INTERNALS, so that an upgrade shows what broke. docs/upstream.md lists these names with those of the other
parts.
"""

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

AGENT = "responses_api_agents.mini_swe_agent_2.app"
PARSER = "nemo_gym.global_config:GlobalConfigDictParser"

_wrapping = threading.Lock()


@dataclass(frozen=True)
class Internal:
    """Names of one library that are replaced, overridden or private."""

    names: tuple[str, ...]  # MODULE:NAME
    seen_in: str  # the release
    why: str
    replaced_by: str  # the public thing that would do
    arguments: tuple[str, ...] = ()  # private ones of a function


INTERNALS = (
    Internal(
        names=("uvicorn:run",),
        seen_in="nemo-gym 0.4.0, which calls it in SimpleServer.run_webserver",
        why="the server listens on a socket that is bound already, drains after SIGTERM, and has our middlewares",
        replaced_by="an argument of run_webserver, or a method to override, that makes and runs the uvicorn.Server",
    ),
    Internal(
        names=(
            "uvicorn:Server.startup",
            "uvicorn:Server.handle_exit",
            "uvicorn:Server.on_tick",
            "uvicorn:Server.shutdown",
        ),
        seen_in="uvicorn 0.54.0; overridden in server/draining.py",
        why="after SIGTERM a server goes on accepting until it is idle; uvicorn closes the listening socket at once",
        replaced_by="a grace of uvicorn's in which the socket stays open, or a callback that may defer the shutdown",
    ),
    Internal(
        names=("nemo_gym.server_utils:initialize_ray",),
        seen_in="nemo-gym 0.4.0, which calls it in SimpleServer.run_webserver",
        why="each server starts or joins a Ray cluster, whether its code uses Ray or not",
        replaced_by="a setting of the Gym config that leaves Ray out, or gives the arguments of ray.init",
    ),
    Internal(
        names=("ray:init",),
        arguments=("_temp_dir", "_plasma_directory"),
        seen_in="ray 2.60.0",
        why="a read-only root file system, and a /dev/shm of 64 MiB: files and object store go to the scratch volume",
        replaced_by="public arguments of the same meaning",
    ),
    Internal(
        names=("ray:remote", "ray:get"),
        seen_in="ray 2.60.0, as nemo-gym 0.4.0's mini_swe_agent_2 uses them",
        why="the agent only waits in Ray's workers; threads of its server do that without Ray (decision 14)",
        replaced_by="a setting of the agent that runs rollouts in threads",
    ),
    Internal(
        names=(f"{AGENT}:run_mini_swe_with_sandbox", f"{AGENT}:_split_trajectory_for_responses"),
        seen_in="nemo-gym 0.4.0",
        why="the agent's answers lack the token ids of the policy's calls",
        replaced_by="token ids in the answers of mini_swe_agent_2",
    ),
    Internal(
        names=(
            "minisweagent.models.litellm_model:LitellmModel._parse_actions",
            "minisweagent.models.litellm_model:LitellmModel._prepare_messages_for_api",
        ),
        seen_in="mini-swe-agent 2.1.0",
        why="an answer without a valid tool call isn't kept, and earlier turns go back without their tokens",
        replaced_by="a model class of ours in the agent's config: nemo-gym 0.4.0 sets model_class itself",
    ),
    Internal(
        names=(
            f"{PARSER}.load_extra_config_paths",
            f"{PARSER}.raise_on_missing_values",
            f"{PARSER}.collect_missing_value_paths",
            f"{PARSER}.detect_and_report_almost_servers",
            f"{PARSER}.validate_and_populate_defaults",
            f"{PARSER}.filter_for_server_instance_configs",
        ),
        seen_in="nemo-gym 0.4.0; overridden or called in config/resolve.py",
        why="preflight reports all that is wrong with a config at once, where upstream raises at the first",
        replaced_by="a parser that returns its errors",
    ),
)


def replace_uvicorn_run(run: Callable[..., None]) -> None:
    """Makes NeMo Gym's servers call `run` instead of uvicorn.run."""
    import uvicorn

    uvicorn.run = run


def replace_ray_start(start: Callable[[], None]) -> None:
    """Makes NeMo Gym's servers call `start` where they would start or join a Ray cluster."""
    import nemo_gym.server_utils

    nemo_gym.server_utils.initialize_ray = start


def start_local_ray(cpus: int, folder: Path, object_store_bytes: int) -> None:
    """Starts a Ray cluster of this pod alone, with its files and its object store in `folder`."""
    import ray

    if not ray.is_initialized():
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=object_store_bytes,
            ignore_reinit_error=True,
            _temp_dir=str(folder),
            _plasma_directory=str(folder),
        )


def replace_ray_functions(remote: Callable[..., Any], get: Callable[..., Any]) -> None:
    """Puts both in the place of Ray's, for code that is imported later."""
    import ray

    ray.remote, ray.get = remote, get


def wrap_mini_swe_agent(agent: MutableMapping[str, Any], run: Callable[..., Any], split: Callable[..., Any]) -> None:
    """Puts `run` and `split` around the functions of the agent's module, where it has them. Each gets the original as
    its first argument."""
    names = "run_mini_swe_with_sandbox", "_split_trajectory_for_responses"
    if all(agent.get(name) is not None for name in names):
        for name, wrapper in zip(names, (run, split), strict=True):
            agent[name] = partial(wrapper, agent[name])


def wrap_litellm_model(parse: Callable[..., Any], prepare: Callable[..., Any]) -> None:
    """Puts `parse` and `prepare` around the methods of mini-swe-agent's model, once in a process. Each gets the
    original as its first argument."""
    from minisweagent.models.litellm_model import LitellmModel

    with _wrapping:
        parse_actions, prepare_messages = LitellmModel._parse_actions, LitellmModel._prepare_messages_for_api
        if parse_actions.__module__ != __name__:
            LitellmModel._parse_actions = lambda model, response: parse(parse_actions, model, response)
            LitellmModel._prepare_messages_for_api = lambda model, messages: prepare(prepare_messages, model, messages)
