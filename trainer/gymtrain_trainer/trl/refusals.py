"""Finds out which constructor errors of TRL, peft and transformers refuse a setting, and which setting.

The same settings are refused in every attempt, so preflight says it before any GPU is taken (trl/rehearsal.py),
and a trainer that still gets there ends with the exit code that makes no further attempt (trl/trainer.py).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.errors import SettingsError, TrainerError

# The setting that transformers' Trainer reads in a method, for messages that name none.
_READ_IN = {
    "get_optimizer_cls_and_kwargs": "optim",
    "create_optimizer": "optim",
    "create_scheduler": "lr_scheduler_type",
}
_TEXT_LIMIT = 600  # characters of a library's message


def is_refusal(error: BaseException) -> bool:
    """Whether retrying can't help. Errors that a device, a file system or a network can cause don't count."""
    if isinstance(error, ValueError | TypeError | NotImplementedError | ImportError | AttributeError | KeyError):
        return True
    # transformers' callbacks of trackers that aren't installed raise RuntimeError, as CUDA and NCCL do.
    return isinstance(error, RuntimeError) and "pip install" in str(error)


@contextmanager
def refusals_named(spec: GymTrainingRunSpec) -> Iterator[None]:
    """Around the constructors.

    Raises:
        SettingsError: in place of an error that every attempt would end in; names the field of the spec.
    """
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        if not is_refusal(error):
            raise
        raise SettingsError(
            f"{place_of(error, spec)}: the trainer can't be built this way: {type(error).__name__}: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """The error's message without its line breaks, or its class where it has none."""
    return " ".join(str(error).split())[:_TEXT_LIMIT] or type(error).__name__


def place_of(error: BaseException, spec: GymTrainingRunSpec) -> str:
    """The field of the spec that a constructor's error is about, as closely as can be told."""
    text = one_line(error)
    packages, functions = _trail(error.__traceback__)
    if spec.model.lora is not None and "peft" in packages:
        return _named("spec.model.lora", spec.model.lora, text.replace("Target modules", "target_modules"))
    where = "spec.trainer.config"
    found = _named(where, spec.trainer.config, text)
    read = next((key for function, key in _READ_IN.items() if function in functions), None)
    return f"{where}.{read}" if read is not None and found == where else found


def _named(where: str, settings: Mapping[str, Any], text: str) -> str:
    """`where` with the setting that `text` names: by its own name, else by a word of its value."""
    by_name = [key for key in settings if _has_word(text, key)]
    by_value = [key for key, value in settings.items() if any(_has_word(text, word) for word in _words(value))]
    found = [*by_name, *by_value]
    return f"{where}.{found[0]}" if found else where


def _has_word(text: str, word: str) -> bool:
    spelled = re.escape(word).replace("_", "[_-]")  # comet_ml is comet-ml to pip
    return re.search(rf"(?<!\w){spelled}(?!\w)", text, re.IGNORECASE) is not None or (
        len(word) > 3 and re.search(rf"(?<!\w){re.escape(word.title())}[A-Z]", text) is not None  # wandb: WandbCallback
    )


def _words(value: Any) -> Iterator[str]:
    """Texts in a value that are long enough to be no accident."""
    if isinstance(value, str) and len(value) > 2:
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(key)
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)


def _trail(trace: TracebackType | None) -> tuple[set[str], set[str]]:
    """Top packages and names of the functions that the error came through."""
    packages, functions = set(), set()
    while trace is not None:
        packages.add(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        functions.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return packages, functions
