"""What we do at TRL's steps: report, keep the worker's place in checkpoints, stop on SIGTERM."""

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gymtrain_api.wiring import weight_version
from gymtrain_trainer.algorithm.checkpoints import WorkerState, checkpoint_folder, write_state
from gymtrain_trainer.algorithm.record import RewardsFile, step_line, step_record
from gymtrain_trainer.context import Context
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.stopping import StopSignal

log = logging.getLogger(__name__)

_RATIO_TOLERANCE = 0.05
# TRL's names of numbers that /metrics shows too
_SHOWN = ("loss", "grad_norm", "learning_rate", "kl", "ratio", "entropy", "perf/rollout_wait_s", "perf/weight_sync_s")
_SPENT = ("rollout_wait_s", "weight_sync_s")


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Rank 0: the progress of each step, and the worker's place beside each checkpoint."""

    def __init__(
        self, context: Context, board: ProgressBoard, worker: RolloutWorker, rewards: RewardsFile, samples_per_step: int
    ) -> None:
        """`samples_per_step`: 0 where it varies (token budget)."""
        self._context = context
        self._board = board
        self._worker = worker
        self._rewards = rewards
        self._samples_per_step = samples_per_step
        self._step_ended = time.monotonic()
        self._first_step = 0
        self._last_logged = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before TRL's first weight sync."""
        self._first_step = self._last_logged = state.global_step
        self._rewards.begin(state.global_step)
        self._step_ended = time.monotonic()
        self._board.update(
            phase="waiting_for_rollouts",
            message="",
            training_started_at=time.time(),
            step=state.global_step,
            max_steps=state.max_steps,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The samples of a step are there."""
        if self._board.snapshot().phase != "training":
            self._board.update(phase="training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the optimizer's step, before the weight sync."""
        fields: dict[str, Any] = {"step": state.global_step}
        if state.global_step == self._first_step + 1:
            fields["first_step_at"] = time.time()
        self._board.update(**fields)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """After the weight sync, with TRL's numbers."""
        steps = state.global_step - self._last_logged
        if not steps or not logs:
            return
        per_step = self._samples_per_step or round(logs.get("batch/samples_per_step") or 0)
        used = self._worker.rollout_buffer.use(per_step * steps)
        if not used:
            return
        now = time.monotonic()
        record = step_record(state.global_step, used, now - self._step_ended)
        first, self._last_logged, self._step_ended = self._last_logged == self._first_step, state.global_step, now
        self._rewards.append(record)
        numbers = {name.split("/")[-1]: float(logs[name]) for name in _SHOWN if isinstance(logs.get(name), int | float)}
        spent: dict[str, float] = {name: numbers[name] for name in _SPENT if name in numbers}
        print(step_line(record, used, self._version, spent), flush=True)
        numbers |= {
            "reward_std": record.reward_std,
            "staleness": record.staleness,
            "step_seconds": record.seconds,
            "tokens": float(record.tokens),
            "stale_samples": float(self._worker.rollout_buffer.stale),
            "discarded_groups": float(self._worker.discarded_groups),
        }
        self._board.set_numbers(numbers)
        self._board.update(reward=record.reward, tokens_per_second=round(record.tokens_per_second, 2))
        log.info(
            "step %d/%d  reward %.3f ± %.3f  %d groups  staleness %.1f  %.0f tok/s  %.1f s (rollouts %.1f, sync %.1f)",
            state.global_step,
            state.max_steps,
            record.reward,
            record.reward_std,
            record.groups,
            record.staleness,
            record.tokens_per_second,
            record.seconds,
            numbers.get("rollout_wait_s", 0.0),
            numbers.get("weight_sync_s", 0.0),
        )
        if first:
            self._check_ratio(numbers.get("ratio"), record.staleness)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint was written."""
        write_worker_state(self._context, state.global_step, self._worker)

    def _version(self, number: int) -> str:
        return weight_version(self._context.run.name, self._context.attempt, number)

    def _check_ratio(self, ratio: float | None, staleness: float) -> None:
        """On fresh samples, trainer and vLLM must agree about every token: exp(new - old log-prob) is 1."""
        if ratio is None or staleness > 0:
            return
        if abs(ratio - 1) > _RATIO_TOLERANCE:
            log.warning(
                "the first step's probability ratio is %.4f where 1 is expected: vLLM and the trainer disagree about "
                "log-probabilities (--logprobs-mode processed_logprobs? temperature? dtype?)",
                ratio,
            )
        else:
            log.info("the first step's probability ratio is %.4f (1 is exact)", ratio)


def write_worker_state(context: Context, step: int, worker: RolloutWorker) -> None:
    """Completes the checkpoint of a step."""
    folder = checkpoint_folder(context.run_folder, step)
    state = WorkerState(step=step, position=worker.resume_position(), attempt=context.attempt, uid=context.run.uid)
    write_state(folder, state)
    log.info("checkpoint %s", folder)


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """All ranks: ends training at a step's end once any of them got SIGTERM, with a checkpoint where those are kept."""

    def __init__(self, stop: StopSignal, save: bool, agree: Callable[[bool], bool]) -> None:
        """`agree`: True on every rank if True on one; a collective."""
        self._stop = stop
        self._save = save
        self._agree = agree

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the optimizer's step."""
        if self._agree(self._stop.requested):
            self._stop.requested = True
            control.should_training_stop = True
            control.should_save = self._save


def agree_among_ranks(flag: bool) -> bool:
    """True on every rank if `flag` is True on one."""
    if not torch.distributed.is_initialized():
        return flag
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    value = torch.tensor(int(flag), device=device)
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return bool(value.item())
