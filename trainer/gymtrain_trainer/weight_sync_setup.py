"""Weight sync as the run's spec has it; its parity check has prompts of the run's data."""

import itertools
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from gymtrain_trainer.activity import Activity
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.answer import prompt_text
from gymtrain_trainer.servers import sync_settings
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import (
    ADAPTER_FOLDER,
    ParityCheck,
    ParityResult,
    ParityWatch,
    SyncEvent,
    SyncNumberFile,
    SyncNumbers,
    TransportNeeds,
    WeightStore,
    WeightSync,
    choose_transport,
)
from gymtrain_trainer.weights.sync import StreamWatch
from gymtrain_trainer.weights.transports.transport import Parameters

log = logging.getLogger(__name__)

_PROMPTS = 3
_CHARACTERS = 400


def make_weight_sync(
    context: Context,
    board: ProgressBoard,
    store: WeightStore,
    *,
    stop: StopSignal,
    activity: Activity,
    parameters: Parameters,
    parity: ParityCheck,
    watch: StreamWatch | None,
) -> WeightSync:
    """The weight sync of this process. It asks no server yet.

    Args:
        context: of the run.
        board: where it reports.
        store: of the weights that vLLM fetches.
        stop: ends waits.
        activity: of the main thread.
        parameters: of the model that is trained; asked once a transport is chosen.
        parity: what is checked after syncs.
        watch: sees the stream of each version on its way.
    """
    spec, settings = context.run.spec, sync_settings(context)
    number_file = SyncNumberFile(context.run_folder if spec.trainer.checkpoint else None, context.attempt)
    return WeightSync(
        settings,
        partial(choose_transport, settings, _needs(context, store, parameters)),
        numbers=SyncNumbers(context.run.name, context.attempt, number_file.last()),
        number_file=number_file,
        store=store,
        parity=ParityWatch(
            parity, every_syncs=spec.weight_sync.parity_every_syncs, on_result=partial(_report_parity, board)
        ),
        board=board,
        stop=stop,
        activity=activity,
        observer=_log_event,
        watch=watch,
    )


def parity_check(threshold: str | None) -> ParityCheck:
    """The check, without prompts; `threshold`: spec.weightSync.parityThreshold."""
    return ParityCheck(prompts=[], threshold=float(threshold) if threshold else None)


def fill_prompts(prompts: list[list[int]], tasks: Iterable[Task], tokenizer: Any) -> None:
    """Prompts of the first tasks, as plain text: the check needs realistic tokens, no chat."""
    for task in itertools.islice(tasks, _PROMPTS):
        text = prompt_text(task.row)[:_CHARACTERS]
        prompts.append(tokenizer(text or "Hello").input_ids)


def _needs(context: Context, store: WeightStore, parameters: Parameters) -> TransportNeeds:
    """What the run's spec says of its weight transport."""
    spec = context.run.spec
    return TransportNeeds(
        requested=spec.weight_sync.transport,
        store=store,
        adapters=context.run_folder / ADAPTER_FOLDER,
        parameters=parameters,
        lora=spec.model.lora,
        max_staleness=spec.rollout.max_staleness,
        shared_volume=spec.trainer.checkpoint is not None,
        trainer_gpus=spec.trainer.gpus,
        inference_gpus=spec.inference.gpus,
        nodes=spec.inference.nodes,
    )


def _report_parity(board: ProgressBoard, result: ParityResult) -> None:
    """Shows a check on the board; an alarm while it is near what is allowed."""
    board.update(parity=result.difference)
    if result.alarming:
        board.set_alarm(
            "ParityOff",
            f"log-probabilities of vLLM and the trainer differ by {result.difference:.3g} on average; above "
            f"{result.threshold:g} the run fails (spec.weightSync.parityThreshold)",
        )
    else:
        board.clear_alarm("ParityOff")


def _log_event(event: SyncEvent) -> None:
    if event.kind != "sync":
        log.warning("weights: %s %s", event.kind, event.message)
