"""One training process, from start to end. Rank 0 also serves HTTP, waits for the servers and collects rollouts.

```
HTTP server ──► servers awaited (thread) ──────────────┐
            └─► torch, TRL, model loaded (main thread) ┴─► train: transport, first sync, steps ─► final model
```
Heavy imports happen inside the functions, after the HTTP server is up: the operator sees the trainer at once.
"""

import logging
import os
import time
from concurrent.futures import Future
from typing import Any

from gymtrain_api import wiring
from gymtrain_trainer.checkpoints.volume import explained
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import read_index
from gymtrain_trainer.errors import InterruptedBySignal, SettingsError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.serve import HttpServer, make_app
from gymtrain_trainer.servers import start_waiting
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.transfer import ELSEWHERE
from gymtrain_trainer.trl import settings
from gymtrain_trainer.trl.refusals import refusals_named
from gymtrain_trainer.weights import WeightStore, weight_routes

log = logging.getLogger(__name__)


def open_port(context: Context, board: ProgressBoard) -> tuple[HttpServer, WeightStore]:
    """Starts the HTTP server and the store that it serves weights from."""
    store = WeightStore(context.paths.scratch / "weights")
    server = HttpServer(make_app(board, weight_routes(store)), context.port)
    server.start()
    return server, store


def train(context: Context, board: ProgressBoard | None, store: WeightStore | None, stop: StopSignal) -> None:
    """Trains to the end. `board` and `store` on rank 0 only.

    Raises:
        TrainerError: and the errors of the weights package; each has its exit code (main.exit_code).
    """
    servers = start_waiting(context, board) if board is not None else None
    from gymtrain_trainer.checkpoints.saving import checkpoint_volume

    with explained(context.run_folder, checkpoint_volume(context)):
        _train(context, board, store, stop, servers)


def _train(
    context: Context,
    board: ProgressBoard | None,
    store: WeightStore | None,
    stop: StopSignal,
    servers: Future[None] | None,
) -> None:
    from gymtrain_trainer.checkpoints.begin import prepare_folder, starting_position
    from gymtrain_trainer.checkpoints.resume import start_of
    from gymtrain_trainer.checkpoints.saving import Saves, save_on_the_way_out
    from gymtrain_trainer.rank_zero import RankZero, make_rank_zero
    from gymtrain_trainer.step_report import ReportCallback
    from gymtrain_trainer.trl.steps import StopCallback, agree_among_ranks, end_rollouts_on_signal
    from gymtrain_trainer.weights_parity import fill_prompts

    spec = context.run.spec
    arguments = _arguments(context)
    start = start_of(context, arguments.get("max_steps"))
    checkpoint = start.checkpoint
    if board is not None:
        prepare_folder(context, board)
    callbacks: list[Any] = []
    holder: list[Any] = []  # the trainer, once there is one
    rank_zero: RankZero | None = None
    saves: Saves | None = None
    if board is not None:
        assert store is not None
        assert servers is not None
        position = starting_position(context, board, start)
        rank_zero = make_rank_zero(context, board, store, stop, servers, arguments, position, lambda: holder[0])
        saves = Saves(context, board)
        callbacks.append(ReportCallback(context, rank_zero, saves, lambda: holder[0]))

    began = time.monotonic()
    from gymtrain_trainer.trl.adapter import agree_on_adapter
    from gymtrain_trainer.trl.trainer import build_trainer

    with refusals_named(spec):
        trainer = build_trainer(
            arguments,
            context.paths.model,
            lora=settings.lora_arguments(spec),
            callbacks=callbacks,
            rollout_worker=rank_zero.worker if rank_zero else None,
            weight_transfer=rank_zero.transfer if rank_zero else ELSEWHERE,
        )
    holder.append(trainer)
    # Behind TRL's own callbacks: a signal that comes while weights are synced ends this step, not the next.
    trainer.add_callback(StopCallback(stop, spec.trainer.checkpoint is not None, agree_among_ranks))
    if saves:
        saves.forgive(trainer)
    log.info("model loaded in %.1f s", time.monotonic() - began)
    if rank_zero:
        if context.processes > 1:
            end_rollouts_on_signal(trainer)
        fill_prompts(rank_zero.prompts, rank_zero.tasks, trainer.processing_class)
        with stop.waiting():
            rank_zero.servers.result()
    if spec.model.lora is not None:
        agree_on_adapter(trainer, rank_zero.transport.settle if rank_zero else None)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None)
    except InterruptedBySignal:
        save_on_the_way_out(context, trainer, rank_zero.worker if rank_zero else None)
        raise
    finally:
        if rank_zero:
            rank_zero.end()
    stop.requested = agree_among_ranks(stop.requested)
    if spec.trainer.checkpoint and not stop.requested:
        trainer.save_model(str(context.run_folder / "model"))
        log.info("final model in %s", context.run_folder / "model")
    # A rank that ended now would leave others in the collectives of a sharded model's saving.
    trainer.accelerator.wait_for_everyone()
    stop.check()


def _arguments(context: Context) -> dict[str, Any]:
    """Arguments of TRL's config."""
    spec = context.run.spec
    steps = settings.max_steps(spec, sum(file.rows for file in read_index(context.paths.data_index).train))
    if steps is None:
        raise SettingsError("spec.trainer.config sets neither max_steps nor num_train_epochs")
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(context.run_folder / "tensorboard")
    return settings.trl_arguments(spec, folder=context.run_folder, steps=steps)


def leads() -> bool:
    """Whether this process is rank 0 (torchrun sets RANK)."""
    return int(os.environ.get("RANK", "0")) == 0


def starting_board(context: Context) -> ProgressBoard:
    """The board of an attempt that has only just begun."""
    return ProgressBoard(
        wiring.TrainerProgress(
            phase="starting",
            max_steps=settings.max_steps(context.run.spec, None),
            updated_at=time.time(),
        )
    )
