"""One training process, from start to end. Rank 0 also serves HTTP, waits for the servers and collects rollouts.

```
HTTP server ──► servers awaited (thread) ──────────────┐
            └─► torch, TRL, model loaded (main thread) ┴─► train: transport, first sync, steps ─► final model
```
Heavy imports happen inside the functions, after the HTTP server is up: the operator sees the trainer at once.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gymtrain_api import wiring
from gymtrain_trainer import settings
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import Tasks, read_index
from gymtrain_trainer.errors import InterruptedBySignal, RolloutError, SettingsError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.answer import prompt_text
from gymtrain_trainer.rollouts.client import RolloutClient, RolloutLimits, Sampling
from gymtrain_trainer.rollouts.guard import Versions, WeightGuard
from gymtrain_trainer.rollouts.pace import samples_ahead
from gymtrain_trainer.rollouts.samples import to_samples
from gymtrain_trainer.rollouts.worker import RolloutWorker, WorkerSettings
from gymtrain_trainer.serve import HttpServer, make_app
from gymtrain_trainer.servers import start_waiting, sync_settings
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.transport import transport_needs
from gymtrain_trainer.weights import (
    ChosenTransport,
    ParityCheck,
    ParityResult,
    ParityWatch,
    SyncEvent,
    TransportRefusedError,
    WeightStore,
    untrusted,
    weight_routes,
)

log = logging.getLogger(__name__)

_PARITY_PROMPTS = 3
_PARITY_CHARACTERS = 400


class _Weights:
    """What the rollout guard asks of the transport."""

    def __init__(self, transfer: ChosenTransport) -> None:
        self._transfer = transfer

    async def pod_versions(self) -> Versions:
        return await self._transfer.pod_versions()

    def repairs(self) -> int:
        return self._transfer.stats.repairs


class _InterruptibleTransfer:
    """The transport, with waits that SIGTERM ends: suspending a run takes vLLM away in the middle of a sync."""

    def __init__(self, transfer: ChosenTransport, stop: StopSignal, board: ProgressBoard) -> None:
        self._transfer = transfer
        self._stop = stop
        self._board = board

    def init_weight_transfer(self) -> None:
        """Settles the transport by what the servers offer, and says so on the board."""
        try:
            with self._stop.waiting():
                self._transfer.init_weight_transfer()
        except TransportRefusedError as error:
            self._board.update(transport_reason=str(error))
            raise
        self._board.update(transport=self._transfer.name, transport_reason=self._transfer.reason)

    def pause(self) -> None:
        with self._stop.waiting():
            self._transfer.pause()

    def send_weights(self, iterator: Any) -> None:
        with self._stop.waiting():
            self._transfer.send_weights(iterator)

    def resume(self) -> None:
        with self._stop.waiting():
            self._transfer.resume()

    def destroy(self) -> None:
        self._transfer.destroy()


@dataclass
class Lead:
    """What only rank 0 has."""

    board: ProgressBoard
    tasks: Tasks
    worker: RolloutWorker
    transfer: ChosenTransport
    parity: ParityCheck
    servers: Future[None]


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

    from gymtrain_trainer.algorithm.callbacks import ReportCallback, StopCallback, agree_among_ranks
    from gymtrain_trainer.algorithm.checkpoints import claim_folder, last_checkpoint
    from gymtrain_trainer.algorithm.record import REWARDS_FILE, RewardsFile

    spec = context.run.spec
    if board is not None:
        claim_folder(context.run_folder, context.run.uid)
    checkpoint = last_checkpoint(context.run_folder, context.run.uid) if spec.trainer.checkpoint else None
    if checkpoint:
        log.info("resuming from %s, position %d", checkpoint.folder, checkpoint.state.position)
    index = read_index(context.paths.data_index)
    steps = settings.max_steps(spec, sum(file.rows for file in index.train))
    if steps is None:
        raise SettingsError("spec.trainer.config sets neither max_steps nor num_train_epochs")
    arguments = settings.trl_arguments(spec, folder=context.run_folder, steps=steps)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(context.run_folder / "tensorboard")
    callbacks: list[Any] = [StopCallback(stop, spec.trainer.checkpoint is not None, agree_among_ranks)]
    lead: Lead | None = None
    holder: list[Any] = []  # the trainer, once there is one: the parity check needs its model
    if board is not None:
        assert store is not None
        assert servers is not None
        tasks = Tasks(index, context.run.agents, seed=int(arguments.get("seed", 42)))
        parity = _parity(holder, spec.weight_sync.parity_threshold)
        watch = ParityWatch(
            parity,
            every_syncs=spec.weight_sync.parity_every_syncs,
            on_result=_on_parity(board),
        )
        transfer = ChosenTransport(
            sync_settings(context), transport_needs(context, store, lambda: holder[0], watch, _on_sync(board))
        )
        worker = _worker(context, board, tasks, transfer, arguments, checkpoint.state.position if checkpoint else 0)
        worker.rollout_buffer.while_waiting = stop.waiting
        lead = Lead(board, tasks, worker, transfer, parity, servers)
        batch = settings.Batch.of(spec)
        callbacks.append(
            ReportCallback(
                context,
                board,
                worker,
                RewardsFile(context.run_folder / REWARDS_FILE),
                0 if batch.token_budget else batch.samples_per_step,
            )
        )

    began = time.monotonic()
    from gymtrain_trainer.algorithm.adapter import agree_on_adapter
    from gymtrain_trainer.algorithm.build import build_trainer

    trainer = build_trainer(
        arguments,
        context.paths.model,
        lora=settings.lora_arguments(spec),
        callbacks=callbacks,
        rollout_worker=lead.worker if lead else None,
        weight_transfer=_InterruptibleTransfer(lead.transfer, stop, lead.board) if lead else None,
    )
    holder.append(trainer)
    log.info("model loaded in %.1f s", time.monotonic() - began)
    if lead:
        _fill_prompts(lead.parity.prompts, lead.tasks, trainer.processing_class)
        with stop.waiting():
            lead.servers.result()
    if spec.model.lora is not None:
        agree_on_adapter(trainer, lead.transfer.settle if lead else None)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None)
    except InterruptedBySignal:
        _save_on_the_way_out(context, trainer, lead)
        raise
    stop.check()
    if spec.trainer.checkpoint:
        trainer.save_model(str(context.run_folder / "model"))
        log.info("final model in %s", context.run_folder / "model")


def _worker(
    context: Context,
    board: ProgressBoard,
    tasks: Tasks,
    transfer: ChosenTransport,
    arguments: dict[str, Any],
    position: int,
) -> RolloutWorker:
    spec, batch = context.run.spec, settings.Batch.of(context.run.spec)
    limits = RolloutLimits(spec.rollout.max_concurrent, spec.rollout.timeout_seconds, spec.rollout.max_attempts)
    sampling = Sampling(
        temperature=float(arguments.get("temperature", 1.0)),
        top_p=float(arguments.get("top_p", 1.0)),
        max_output_tokens=int(arguments.get("max_completion_length", 2048)),
    )
    fork_threshold = int(arguments.get("fork_threshold_tokens", 1024))

    def client(on_failure: Callable[[RolloutError], None]) -> RolloutClient:
        return RolloutClient(limits, sampling, on_failure)

    def guard() -> WeightGuard:
        return WeightGuard(
            _Weights(transfer), lambda before, after: untrusted(before, after, context.run.name, context.attempt)
        )

    return RolloutWorker(
        WorkerSettings(
            num_generations=batch.num_generations,
            ahead=samples_ahead(
                batch.samples_per_step,
                int(arguments.get("weight_sync_steps", 1)),
                batch.num_generations,
            ),
            max_concurrent=spec.rollout.max_concurrent,
            max_staleness=spec.rollout.max_staleness,
            stall_timeout_seconds=spec.rollout.stall_timeout_seconds,
            start_position=position,
        ),
        tasks,
        client,
        guard,
        lambda answers, task, version: to_samples(
            answers, group_id=task.position, model_version=version, agent=task.agent, fork_threshold=fork_threshold
        ),
        board,
    )


def _parity(holder: list[Any], threshold: str | None) -> ParityCheck:
    """The check after syncs, with the trainer's own model. `_fill_prompts` completes it."""

    def log_probs(prompt: list[int], completion: list[int]) -> list[float]:
        from gymtrain_trainer.weights import model_logprobs

        trainer = holder[0]
        return model_logprobs(trainer.accelerator.unwrap_model(trainer.model))(prompt, completion)

    return ParityCheck(logprobs=log_probs, prompts=[], threshold=float(threshold) if threshold else None)


def _fill_prompts(prompts: list[list[int]], tasks: Tasks, tokenizer: Any) -> None:
    """Prompts of the data, as plain text: the parity check needs realistic tokens, no chat."""
    for position in range(_PARITY_PROMPTS):
        text = prompt_text(tasks.at(position).row)[:_PARITY_CHARACTERS]
        prompts.append(tokenizer(text or "Hello").input_ids)


def _on_sync(board: ProgressBoard) -> Callable[[SyncEvent], None]:
    def observe(event: SyncEvent) -> None:
        if event.kind == "sync":
            board.update(weight_version=event.version)
        else:
            log.warning("weights: %s %s", event.kind, event.message)

    return observe


def _on_parity(board: ProgressBoard) -> Callable[[ParityResult], None]:
    def observe(result: ParityResult) -> None:
        board.update(parity=result.difference)

    return observe


def _save_on_the_way_out(context: Context, trainer: Any, lead: Lead | None) -> None:
    """A last checkpoint of a run that was stopped while it waited; it stands at a step's end then.

    One process only: with more, the others are inside a collective and can't take part.
    """
    step = trainer.state.global_step
    if not context.run.spec.trainer.checkpoint or context.processes > 1 or lead is None or step == 0:
        return
    from gymtrain_trainer.algorithm.callbacks import write_worker_state
    from gymtrain_trainer.algorithm.checkpoints import last_checkpoint

    last = last_checkpoint(context.run_folder, context.run.uid)
    if last is None or last.state.step < step:
        with contextlib.suppress(OSError):
            trainer._save_checkpoint(trainer.model, trial=None)
            write_worker_state(context, step, lead.worker)


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
