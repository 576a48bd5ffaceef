"""An error of a constructor: is it final, and which field of the spec is it about?"""

from typing import Any

import pytest

from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.errors import InterruptedBySignal, SettingsError
from gymtrain_trainer.main import exit_code
from gymtrain_trainer.trl.refusals import is_refusal, place_of, refusals_named
from tests.unit.trainer.test_trainer_settings import spec


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ValueError("You have set `args.eval_strategy` to steps"), True),
        (TypeError("got multiple values"), True),
        (ImportError("You need to install `bitsandbytes`"), True),
        (NotImplementedError("`use_liger_kernel` is not supported yet."), True),
        (RuntimeError("WandbCallback requires wandb to be installed. Run `pip install wandb`."), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OutOfMemoryError("CUDA out of memory"), False),
        (OSError(5, "Input/output error"), False),
        (MemoryError(), False),
    ],
)
def test_only_what_settings_cause_is_final(error: Exception, final: bool) -> None:
    assert is_refusal(error) is final


def test_a_refusal_ends_the_run_and_names_the_field() -> None:
    run = spec({"eval_strategy": "steps"})
    with pytest.raises(SettingsError) as caught, refusals_named(run):
        raise ValueError("You have set `args.eval_strategy` to\nsteps")
    assert exit_code(caught.value) == ExitCode.REFUSED
    assert str(caught.value) == (
        "spec.trainer.config.eval_strategy: the trainer can't be built this way: ValueError: You have set "
        "`args.eval_strategy` to steps"
    )


@pytest.mark.parametrize("error", [RuntimeError("NCCL error"), OSError(5, "I/O"), InterruptedBySignal("SIGTERM")])
def test_what_another_attempt_may_mend_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, refusals_named(spec()):
        raise error
    assert exit_code(caught.value) == ExitCode.RETRY


@pytest.mark.parametrize(
    ("config", "text", "where"),
    [
        ({"report_to": ["tensorboard", "wandb"]}, "WandbCallback requires wandb to be installed.", ".report_to"),
        ({"report_to": ["comet_ml"]}, "CometCallback requires comet-ml>=3.43.2 to be installed.", ".report_to"),
        ({"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Nope"]}}, "class Nope in", ".fsdp_config"),
        ({"fsdp": True}, "Using fsdp only works in distributed training.", ".fsdp"),
        ({"bf16": True, "max_steps": 4}, "something else", ""),
        ({"optim": "adamm"}, "adamm is not a valid OptimizerNames", ".optim"),
    ],
)
def test_the_setting_is_found_by_its_name_or_by_a_word_of_its_value(
    config: dict[str, Any], text: str, where: str
) -> None:
    assert place_of(ValueError(text), spec(config)) == f"spec.trainer.config{where}"
