"""What runs around the training processes of a pod, where there is more than one in the run: torchrun, for most."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from gymtrain_api.wiring import RENDEZVOUS_PORT, TRAINER_GRACE_SECONDS, ExitCode
from gymtrain_trainer.context import Context
from gymtrain_trainer.dns import addresses
from gymtrain_trainer.errors import ServersError
from gymtrain_trainer.framework import load_framework

_PERIOD_SECONDS = 1.0
EXIT_CODE_FILE = "exit-code"  # below the scratch folder: torchrun itself only ever answers 1


def torchrun_arguments(context: Context) -> list[str]:
    """The command of this pod, for frameworks whose processes torchrun starts."""
    deadline = context.run.spec.startup_deadline_seconds
    master = context.master_host if context.nodes > 1 else "127.0.0.1"
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={context.nodes}",
        f"--node-rank={context.node_rank}",
        f"--nproc-per-node={context.run.spec.trainer.processes_per_node}",
        f"--master-addr={master}",
        f"--master-port={RENDEZVOUS_PORT}",
        f"--rdzv-conf=timeout={deadline},join_timeout={deadline}",
        "--max-restarts=0",  # the operator makes attempts, with versions of their own
        f"--shutdown-timeout={_grace_seconds(context)}",  # it would kill its processes after 30 s, amid a checkpoint
        "--module",
        "gymtrain_trainer",
    ]


def _grace_seconds(context: Context) -> int:
    """Between SIGTERM and SIGKILL, as the pod has it."""
    pod = (context.run.spec.trainer.template or {}).get("spec") or {}
    return int(pod.get("terminationGracePeriodSeconds", TRAINER_GRACE_SECONDS))


def wait_for_name(host: str, deadline_seconds: float) -> None:
    """Until DNS knows `host`: a pod's record appears some seconds after the pod.

    Raises:
        ServersError: it doesn't before the deadline.
    """
    end = time.monotonic() + deadline_seconds
    while True:
        try:
            addresses(host, RENDEZVOUS_PORT)
            return
        except socket.gaierror as error:
            if time.monotonic() > end:
                raise ServersError(f"no DNS record of trainer node 0, {host}: {error}") from error
        time.sleep(_PERIOD_SECONDS)


def launch(context: Context) -> int:
    """Runs the framework's command to its end and returns the exit code of the attempt. SIGTERM is passed on to it."""
    if context.nodes > 1 and context.node_rank > 0:
        wait_for_name(context.master_host, context.run.spec.startup_deadline_seconds)
    how = load_framework(context.run.spec.trainer.framework).launch(context)
    noted = context.paths.scratch / EXIT_CODE_FILE
    noted.unlink(missing_ok=True)
    child = subprocess.Popen(how.command, env={**os.environ, **how.environment})

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    code = child.wait()
    if code != 0 and noted.exists():
        return int(noted.read_text())
    return ExitCode.OK if code == 0 else ExitCode.RETRY
