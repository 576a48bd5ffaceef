"""One training process, from start to end. Rank 0 also serves HTTP, waits for the servers and collects rollouts.

```
HTTP server ──► servers awaited (thread) ─────────────────────────────────────┐
            └─► rank 0's parts ─► framework, model, checkpoint (main thread) ─┴─► transport, syncs, steps ─► final model
```
A framework's libraries take seconds to import, and do so after the HTTP server is up: the operator sees the trainer at
once.
"""

import gc
import logging
import os
import time
from concurrent.futures import Future
from pathlib import Path

from gymtrain_api import wiring
from gymtrain_api.conditions import Reason
from gymtrain_api.spec import Push
from gymtrain_trainer.checkpoints.begin import prepare_folder, starting_place
from gymtrain_trainer.checkpoints.final_model import drafted_model, model_folder
from gymtrain_trainer.checkpoints.resume import start_of
from gymtrain_trainer.checkpoints.saving import Saves, checkpoint_volume
from gymtrain_trainer.checkpoints.volume import explained
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import read_index
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.evaluation.table import evaluation_table
from gymtrain_trainer.framework import RankZeroParts, TrainerParts, load_framework
from gymtrain_trainer.monitoring.model_card import CARD, model_card
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.pushing import run_push
from gymtrain_trainer.rank_zero import RankZero, make_rank_zero
from gymtrain_trainer.serve import HttpServer, make_app, sending_threads
from gymtrain_trainer.servers import start_waiting
from gymtrain_trainer.step_report import StepReport
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import WeightStore, weight_routes

log = logging.getLogger(__name__)


def open_port(context: Context, board: ProgressBoard) -> tuple[HttpServer, WeightStore]:
    """Starts the HTTP server and the store that it serves weights from."""
    store = WeightStore(context.paths.scratch / "weights")
    server = HttpServer(lambda: make_app(board, weight_routes(store)), context.port, sending_threads())
    server.start()
    return server, store


def train(context: Context, board: ProgressBoard | None, store: WeightStore | None, stop: StopSignal) -> None:
    """Trains to the end. `board` and `store` on rank 0 only.

    Raises:
        TrainerError: and the errors of the weights package; each has its exit code (main.exit_code).
    """
    servers = start_waiting(context, board) if board is not None else None
    with explained(context.run_folder, checkpoint_volume(context)):
        _train(context, board, store, stop, servers)


def _train(
    context: Context,
    board: ProgressBoard | None,
    store: WeightStore | None,
    stop: StopSignal,
    servers: Future[None] | None,
) -> None:
    spec = context.run.spec
    framework = load_framework(spec.trainer.framework)
    settings = framework.settings(spec, sum(file.rows for file in read_index(context.paths.data_index).train))
    start = start_of(context, settings)
    rank_zero: RankZero | None = None
    parts: RankZeroParts | None = None
    saves: Saves | None = None
    if board is not None:
        assert store is not None
        assert servers is not None
        prepare_folder(context, board)
        place = starting_place(context, board, start, settings.seed)
        step = start.checkpoint.state.step if start.checkpoint else 0
        rank_zero = make_rank_zero(context, board, store, stop, servers, settings, place, step)
        saves = Saves(context, board, settings.seed, settings.checkpoint_kind)
        parts = RankZeroParts(
            rank_zero.worker, rank_zero.weight_sync, rank_zero.settle_transport, StepReport(rank_zero, saves)
        )
    began = time.monotonic()
    trainer = framework.make_trainer(TrainerParts(context, settings, stop, parts))
    log.info("model loaded in %.1f s", time.monotonic() - began)
    if rank_zero:
        rank_zero.attach(trainer)
    # Millions of objects of libraries and the model, which no later collection has to look at: each look takes long.
    gc.collect()
    gc.freeze()
    try:
        trainer.run(start.checkpoint.folder if start.checkpoint else None)
    except InterruptedBySignal:
        if rank_zero and saves:
            saves.on_the_way_out(trainer, rank_zero.worker)
        raise
    finally:
        if rank_zero:
            rank_zero.end()
    stop.requested = trainer.agree(stop.requested)
    if rank_zero and spec.evaluates_only:
        log.info("the evaluations:\n%s", evaluation_table(rank_zero.recorder.evaluations()))
    if spec.trainer.checkpoint and not stop.requested and not spec.evaluates_only:
        with drafted_model(context.run_folder, leads=board is not None) as draft:
            trainer.save_model(draft)
            if board is not None:
                _describe(context, draft)
        if rank_zero:
            log.info("final model in %s", model_folder(context.run_folder))
    # A rank that ended now would leave others in the collectives of a sharded model's saving.
    trainer.wait_for_everyone()
    stop.check()
    if board is not None and spec.trainer.push is not None:
        _push(context, board, spec.trainer.push, stop)


def _describe(context: Context, draft: Path) -> None:
    """Writes the model's card, which is not worth the model."""
    try:
        (draft / CARD).write_text(model_card(context))
    except Exception:
        log.exception("the final model has no card")


def _push(context: Context, board: ProgressBoard, settings: Push, stop: StopSignal) -> None:
    """Uploads the final model. Failing, it says so: training is complete, and the model is on the volume."""
    board.update(message=f"uploading the final model to {settings.to}")
    pushed = run_push(seconds=settings.timeout_seconds, stop=lambda: stop.requested)
    if pushed.done:
        log.info("final model pushed: %s", pushed.said)
        board.notice(Reason.MODEL_PUSHED, pushed.said)
        return
    text = (
        f"the final model was not uploaded: {pushed.said}. It is in the folder {model_folder(context.run_folder).name} "
        f"of the run's checkpoints ({checkpoint_volume(context)})"
    )
    log.error("%s", text)
    board.notice(Reason.PUSH_FAILED, text)


def leads() -> bool:
    """Whether this process is rank 0 (torchrun sets RANK)."""
    return int(os.environ.get("RANK", "0")) == 0


def starting_board(context: Context) -> ProgressBoard:
    """The board of an attempt that has only just begun."""
    return ProgressBoard(
        wiring.TrainerProgress(
            phase="starting",
            max_steps=load_framework(context.run.spec.trainer.framework).settings(context.run.spec, None).max_steps,
            updated_at=time.time(),
        )
    )
