"""The parity check of weight sync with the trainer's own model and prompts of the run's data."""

from collections.abc import Callable
from typing import Any

from gymtrain_trainer.data.rows import Tasks
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.answer import prompt_text
from gymtrain_trainer.weights import ParityCheck, ParityResult

_PROMPTS = 3
_CHARACTERS = 400


def parity_check(log_probs: Callable[[list[int], list[int]], list[float]], threshold: str | None) -> ParityCheck:
    """The check, without prompts; `log_probs`: of the trained model; `threshold`: spec.weightSync.parityThreshold."""
    return ParityCheck(logprobs=log_probs, prompts=[], threshold=float(threshold) if threshold else None)


def parity_report(board: ProgressBoard) -> Callable[[ParityResult], None]:
    """Shows each check on the board; an alarm while it is near what is allowed."""

    def report(result: ParityResult) -> None:
        board.update(parity=result.difference)
        if result.alarming:
            board.set_alarm(
                "ParityOff",
                f"log-probabilities of vLLM and the trainer differ by {result.difference:.3g} on average; above "
                f"{result.threshold:g} the run fails (spec.weightSync.parityThreshold)",
            )
        else:
            board.clear_alarm("ParityOff")

    return report


def fill_prompts(prompts: list[list[int]], tasks: Tasks, tokenizer: Any) -> None:
    """Prompts of the data, as plain text: the check needs realistic tokens, no chat."""
    for position in range(_PROMPTS):
        text = prompt_text(tasks.at(position).row)[:_CHARACTERS]
        prompts.append(tokenizer(text or "Hello").input_ids)
