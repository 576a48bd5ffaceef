"""Starts one unmodified NeMo Gym server: the main process of every Gym server pod.

It does what `ng_run` does for a server (working directory, import path, the config in
NEMO_GYM_CONFIG_DICT, then app.py as __main__), in one process, plus what a pod needs:

- the config comes from a file; the server's own host becomes the address to bind to;
- no Ray, unless the server's code uses it, and then only where threads won't do (ray_modes);
- a writable working directory (workspace);
- on SIGTERM it finishes what is in flight (draining);
- a rollout is never scored in a session that was lost, or after its sandbox was, and errors that end a rollout carry
  the server's name (answers);
- answers of mini_swe_agent_2 carry token ids (mini_swe);
- a rollout that is traced goes on with its trace (traces);
- one process: replicas of the pod stand in for uvicorn workers, which would split session state.

Exits with 0 after a drain, 78 (EX_CONFIG) when the config can't be used, 1 on other errors; the last line on
stderr says why.
"""

import argparse
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import gymtrain_tracing as tracing
from gymtrain_api.wiring import ENV_DRAIN_SECONDS, ENV_GYM_SERVER, GYM_CONFIG_FILE, SCRATCH_DIR
from gymtrain_gym import nemo_gym_internals
from gymtrain_gym.config import code_scan, server_config
from gymtrain_gym.config.server_config import ServerConfig
from gymtrain_gym.errors import ConfigFileError, GymImageError, ServerStartError
from gymtrain_gym.server import mini_swe, ray_modes, workspace
from gymtrain_gym.server.listening import bound, bound_everywhere

ENV_CONFIG_FILE = "GYMTRAIN_GYM_CONFIG"
DRAIN_SECONDS = 25.0  # below Kubernetes' default terminationGracePeriodSeconds of 30
MAX_ENV_BYTES = 100_000  # the kernel refuses to start a process with one variable over 128 KiB
EX_CONFIG = 78
_IPV4_ANY = "0.0.0.0"  # noqa: S104  a pod's only address


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server until it is told to stop. Returns the exit code."""
    try:
        options = _options(argv)
        launch(options.server, options.config, options.bind, options.drain_seconds)
    except GymImageError as error:
        print(f"gymtrain: {error}", file=sys.stderr, flush=True)
        return EX_CONFIG if isinstance(error, ConfigFileError) else 1
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"gymtrain: server {options.server!r} failed: {reason}", file=sys.stderr, flush=True)
        return 1
    return 0


def launch(name: str, config_file: Path, bind: str | None, drain_seconds: float) -> None:
    """Runs server `name` of the config in this process until SIGTERM, and drains it.

    Raises:
        ConfigFileError: the config can't be used.
        ServerStartError: the address is taken or can't be bound, or a Python module is missing.
    """
    config = server_config.read(config_file, name, bind or _IPV4_ANY)  # the socket is ours, whatever it says
    listener = _listen(bind, config.port)
    scratch = _scratch()
    os.environ.setdefault("HF_HOME", str(scratch / "huggingface"))
    if config.type is None:
        _enter_config(config, scratch)
        _run_head(listener, drain_seconds)
        return
    search = workspace.roots()
    folder = workspace.server_folder(config.folder, config.entrypoint, search)
    code = code_scan.scan(folder, config.entrypoint, search)
    if code.missing_modules:
        raise ServerStartError(
            f"server {name!r} needs the Python packages {', '.join(code.missing_modules)}, which this image lacks; "
            f"{config.folder} lists what to install. Use an image with them: spec.gym.image or "
            f"spec.gym.servers.{name}.image"
        )
    twin = workspace.mirror(folder, scratch / "gym" / config.folder)
    _enter_config(config, twin)
    if not code.needs_ray:
        ray_modes.no_ray()
    elif config.has_ray_address:
        pass  # upstream joins the user's cluster
    elif config.implementation in ray_modes.THREADED:
        ray_modes.threads()
    else:
        ray_modes.local_cluster(scratch / "ray")
    keeps_sessions = code.keeps_sessions and config.type == "resources_servers"
    _serve_from(listener, drain_seconds, guarded=name if keeps_sessions else None, config=config)
    runpy.run_path(str(twin / config.entrypoint), run_name="__main__")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gymtrain_gym.launcher", description="Runs one NeMo Gym server.")
    parser.add_argument("--server", default=os.environ.get(ENV_GYM_SERVER), help="top-level key of the server")
    parser.add_argument("--config", type=Path, default=Path(os.environ.get(ENV_CONFIG_FILE, GYM_CONFIG_FILE)))
    parser.add_argument("--bind", help="address to listen on; all of the pod's by default")
    parser.add_argument("--drain-seconds", type=float, default=os.environ.get(ENV_DRAIN_SECONDS, DRAIN_SECONDS))
    options = parser.parse_args(argv)
    if not options.server:
        parser.error(f"no server named: set {ENV_GYM_SERVER} or --server")
    return options


def _listen(host: str | None, port: int) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until the server can answer."""
    try:
        if host is None:
            return bound_everywhere(port)
        return bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    except OSError as error:
        raise ServerStartError(f"can't listen on {f'{host}:' if host else 'port '}{port}: {error}") from error


def _scratch() -> Path:
    """The pod's scratch volume, or a temporary folder where there is none (tests)."""
    scratch = Path(SCRATCH_DIR)
    return scratch if os.access(scratch, os.W_OK) else Path(tempfile.mkdtemp(prefix="gymtrain-"))


def _enter_config(config: ServerConfig, folder: Path) -> None:
    """Hands the config to NeMo Gym, whose working directory becomes `folder`."""
    workspace.enter(folder)
    from nemo_gym.global_config import (
        NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME,
        NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME,
        get_global_config_dict,
    )

    os.environ[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME] = config.text
    os.environ[NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME] = config.name
    get_global_config_dict()  # parsed once and cached: the variable is not read again here
    if len(config.text.encode()) > MAX_ENV_BYTES:
        del os.environ[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME]


def _run_head(listener: socket.socket, drain_seconds: float) -> None:
    import uvicorn
    from nemo_gym.server_utils import HeadServer, ServerClient

    _serve_from(listener, drain_seconds, guarded=None, config=None)
    uvicorn.run(HeadServer(config=ServerClient.load_head_server_config()).setup_webserver())


def _serve_from(
    listener: socket.socket, drain_seconds: float, guarded: str | None, config: ServerConfig | None
) -> None:
    """Replaces uvicorn.run, which upstream's run_webserver calls, by one that drains, on our socket."""
    import uvicorn

    from gymtrain_gym.server.answers import LossMask, NamedErrors, SessionGuard
    from gymtrain_gym.server.draining import Drain, DrainingServer, DrainMiddleware
    from gymtrain_gym.server.traces import Traced

    tracing.start()

    def run(app: Any, **kwargs: Any) -> None:
        drain = Drain(drain_seconds, close_connections=guarded is None)
        app = LossMask(app if guarded is None else SessionGuard(app, guarded))
        if config is not None and config.type is not None:
            app = NamedErrors(app, config.name, server_config.KINDS[config.type])
        if config is not None and config.implementation == mini_swe.IMPLEMENTATION:
            mini_swe.install(vars(sys.modules["__main__"]))
        if config is not None and config.type is not None and tracing.on():
            app = Traced(app, config.name, server_config.KINDS[config.type])
        kwargs = {**kwargs, "host": None, "port": 0}
        threads = config.concurrency if config is not None else 0
        server = DrainingServer(
            uvicorn.Config(DrainMiddleware(app, drain), **kwargs), drain, threads, ray_modes.abandon
        )
        try:
            server.run(sockets=[listener])
        finally:
            tracing.stop()

    nemo_gym_internals.replace_uvicorn_run(run)


def _main() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _main()
