"""The parity check of weight sync with the trainer's own model and prompts of the run's data."""

from collections.abc import Callable
from typing import Any

from gymtrain_trainer.data.rows import Tasks
from gymtrain_trainer.rollouts.answer import prompt_text
from gymtrain_trainer.weights import ParityCheck

_PROMPTS = 3
_CHARACTERS = 400


def parity_check(trainer: Callable[[], Any]) -> ParityCheck:
    """The check, without prompts; `trainer`: TRL's, once it is made."""

    def log_probs(prompt: list[int], completion: list[int]) -> list[float]:
        from gymtrain_trainer.weights import model_logprobs

        return model_logprobs(trainer().accelerator.unwrap_model(trainer().model))(prompt, completion)

    return ParityCheck(logprobs=log_probs, prompts=[])


def fill_prompts(prompts: list[list[int]], tasks: Tasks, tokenizer: Any) -> None:
    """Prompts of the data, as plain text: the check needs realistic tokens, no chat."""
    for position in range(_PROMPTS):
        text = prompt_text(tasks.at(position).row)[:_CHARACTERS]
        prompts.append(tokenizer(text or "Hello").input_ids)
