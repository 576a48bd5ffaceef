"""`python -m gymtrain_trainer`: the entry of the trainer's container, and of each process that torchrun starts."""

import gc
import logging
import os
import sys
import traceback

from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.cpus import set_thread_count
from gymtrain_trainer.errors import TrainerError
from gymtrain_trainer.progress import ProgressBoard, write_termination_message

log = logging.getLogger("gymtrain_trainer")


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that an error ends in."""
    if isinstance(error, TrainerError):
        return error.exit_code
    from gymtrain_trainer.weights import TransportRefusedError, WeightParityError

    return ExitCode.REFUSED if isinstance(error, TransportRefusedError | WeightParityError) else ExitCode.RETRY


def run_process(context: Context) -> ExitCode:
    """One training process: under torchrun, or the only one."""
    from gymtrain_trainer.stopping import StopSignal
    from gymtrain_trainer.train import leads, open_port, starting_board, train

    stop = StopSignal()
    stop.install()
    board: ProgressBoard | None = starting_board(context) if leads() else None
    server = None
    try:
        store = None
        if board is not None:
            server, store = open_port(context, board)
        train(context, board, store, stop)
        code = ExitCode.OK
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, TrainerError):
            traceback.print_exc()
        log.error("%s: %s", type(error).__name__, error)
        if board is not None:
            board.update(phase="failed", message=str(error) or repr(error))
    if board is not None:
        if code == ExitCode.OK:
            board.update(phase="complete", message="")
        write_termination_message(board.snapshot(), context.paths.termination_log)
        _note_exit_code(context, code)
    if server is not None:
        server.stop()
    return code


def _note_exit_code(context: Context, code: ExitCode) -> None:
    """Leaves the code for the pod's entry process, which torchrun hides it from."""
    from gymtrain_trainer.launch import EXIT_CODE_FILE

    if "TORCHELASTIC_RUN_ID" in os.environ:
        (context.paths.scratch / EXIT_CODE_FILE).write_text(str(int(code)))


def main() -> int:
    """Runs the process, or torchrun with several; returns the exit code."""
    gc.set_threshold(50_000, 20, 100)  # loading a framework and the model makes millions of objects, and none goes
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    for noisy in ("httpx", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        context = read_context()
    except TrainerError as error:
        log.error("%s", error)
        return error.exit_code
    set_thread_count(context.run.spec.trainer.processes_per_node)
    if "RANK" in os.environ or context.processes == 1:
        return run_process(context)
    from gymtrain_trainer.launch import launch

    try:
        return launch(context)
    except TrainerError as error:
        log.error("%s", error)
        return error.exit_code
