"""What this part uses of NeMo Gym, and of what NeMo Gym runs on, that they don't offer publicly.

Such a name stands in this module alone, with its row in INTERNALS: functions of theirs that are replaced, methods that
are overridden, private names. Tests look for them elsewhere, and look each row up in what is installed, so that an
upgrade shows what broke. docs/upstream.md lists them for users.

Libraries are imported inside the functions: most callers need one of them at most.
"""

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Internal:
    """A name that its library keeps to itself, or that is replaced.

    Attributes:
        where: MODULE:NAME.
        seen: the release in which it was looked at.
        why: what we use it for.
        instead: the public thing that would take its place.
    """

    where: str
    seen: str
    why: str
    instead: str


_AGENT = "responses_api_agents.mini_swe_agent_2.app"
_MODEL = "minisweagent.models.litellm_model:LitellmModel"
_PARSER = "nemo_gym.global_config:GlobalConfigDictParser"

_DRAIN_WHY = "after SIGTERM a server keeps accepting until it is idle; uvicorn closes the listening socket at once"
_DRAIN_INSTEAD = "a grace of uvicorn's in which the socket stays open"
_THREADS_WHY = "mini_swe_agent_2 only waits in Ray's workers; threads of its server do that without Ray (decision 14)"
_THREADS_INSTEAD = "a setting of the agent that runs rollouts in threads"
_TOKENS_WHY = "answers of mini_swe_agent_2 lack the token ids of the policy's calls"
_TOKENS_INSTEAD = "token ids in these answers"
_MODEL_WHY = "an answer without a valid tool call isn't kept, and earlier turns go back without their token ids"
_MODEL_INSTEAD = "a model class of ours: the setting `model_class`, which nemo-gym 0.4.0 sets itself"
_PARSER_WHY = "preflight reports all that is wrong with a config at once; upstream raises at the first"
_PARSER_INSTEAD = "a parser that returns what it found"

INTERNALS = (
    Internal(
        "uvicorn:run",
        "nemo-gym 0.4.0, whose run_webserver calls it",
        "a server listens on a socket that is bound already, drains after SIGTERM, and has our middlewares around it",
        "a method of NeMo Gym's server, or an argument, that makes the uvicorn.Server",
    ),
    Internal("uvicorn:Server.startup", "uvicorn 0.54.0", _DRAIN_WHY, _DRAIN_INSTEAD),
    Internal("uvicorn:Server.handle_exit", "uvicorn 0.54.0", _DRAIN_WHY, _DRAIN_INSTEAD),
    Internal("uvicorn:Server.on_tick", "uvicorn 0.54.0", _DRAIN_WHY, _DRAIN_INSTEAD),
    Internal("uvicorn:Server.shutdown", "uvicorn 0.54.0", _DRAIN_WHY, _DRAIN_INSTEAD),
    Internal(
        "nemo_gym.server_utils:initialize_ray",
        "nemo-gym 0.4.0, whose run_webserver calls it",
        "each server starts or joins a Ray cluster, whether its code uses Ray or not",
        "a setting that leaves Ray out, or gives the arguments of ray.init",
    ),
    Internal(
        "ray:init",
        "ray 2.60.0, with its arguments `_temp_dir` and `_plasma_directory`",
        "files and object store go to the scratch volume: the root file system is read-only, and /dev/shm has 64 MiB",
        "public arguments that do the same",
    ),
    Internal("ray:remote", "ray 2.60.0", _THREADS_WHY, _THREADS_INSTEAD),
    Internal("ray:get", "ray 2.60.0", _THREADS_WHY, _THREADS_INSTEAD),
    Internal(f"{_AGENT}:run_mini_swe_with_sandbox", "nemo-gym 0.4.0", _TOKENS_WHY, _TOKENS_INSTEAD),
    Internal(f"{_AGENT}:_split_trajectory_for_responses", "nemo-gym 0.4.0", _TOKENS_WHY, _TOKENS_INSTEAD),
    Internal(f"{_MODEL}._parse_actions", "mini-swe-agent 2.1.0", _MODEL_WHY, _MODEL_INSTEAD),
    Internal(f"{_MODEL}._prepare_messages_for_api", "mini-swe-agent 2.1.0", _MODEL_WHY, _MODEL_INSTEAD),
    Internal(f"{_PARSER}.load_extra_config_paths", "nemo-gym 0.4.0", _PARSER_WHY, _PARSER_INSTEAD),
    Internal(f"{_PARSER}.raise_on_missing_values", "nemo-gym 0.4.0", _PARSER_WHY, _PARSER_INSTEAD),
    Internal(f"{_PARSER}.detect_and_report_almost_servers", "nemo-gym 0.4.0", _PARSER_WHY, _PARSER_INSTEAD),
    Internal(f"{_PARSER}.validate_and_populate_defaults", "nemo-gym 0.4.0", _PARSER_WHY, _PARSER_INSTEAD),
)

_wrapping = threading.Lock()


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
