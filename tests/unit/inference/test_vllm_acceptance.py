"""Which command lines pass by the image's notes alone, and which are left to vLLM."""

from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_vllm.acceptance import surely_accepted
from gymtrain_vllm.arguments import build
from gymtrain_vllm.options import Options
from tests.support.specs import smallest_run

_OWN = build(GymTrainingRunSpec.model_validate(smallest_run()["spec"]), Path("/model"), 8000)
OPTIONS = Options(
    digest="x",
    values={
        **{name: () if equals else None for name, equals, _ in (argument.partition("=") for argument in _OWN)},
        "--dtype": ("auto", "bfloat16", "float16", "float32"),
        "--middleware": (),
        "--max-model-len": (),
        "--max-num-seqs": (),
        "--gpu-memory-utilization": (),
        "--block-size": (),
        "--tool-call-parser": (),
        "--quantization": (),
        "--enable-auto-tool-choice": None,
        "--enable-prefix-caching": None,
    },
    tool_parsers=frozenset({"hermes"}),
    architectures=frozenset({"Qwen3ForCausalLM", "Qwen3Model"}),
)
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 4096,
    "num_attention_heads": 12,
}


def sure(*args: str, model: dict[str, Any] | None = MODEL, dtype: str = "auto", gpus: int = 0, **options: Any) -> bool:
    run = smallest_run(model={"source": "hf://a/b", "dtype": dtype}, inference={"args": list(args), "gpus": gpus})
    spec = GymTrainingRunSpec.model_validate(run["spec"])
    notes = Options(**{**OPTIONS.__dict__, **options})
    return surely_accepted(spec, build(spec, Path("/model"), 8000), notes, model)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--max-model-len=4096"],
        ["--max_model_len", "512", "--block-size=32"],
        ["--enable-auto-tool-choice", "--tool-call-parser=hermes"],
        ["--gpu-memory-utilization=0.9", "--max-num-seqs=64", "--enable-prefix-caching"],
    ],
)
def test_what_runs_usually_have_passes_by_the_notes(args: list[str]) -> None:
    assert sure(*args)
    assert sure(*args, model=None), "a hub's model that is not fetched yet can't be judged by anybody"


@pytest.mark.parametrize(
    "args",
    [
        ["--max-model-lenn=512"],
        ["--max-model-le=512"],
        ["--max-model-len=4097"],
        ["--max-model-len=1k"],
        ["--max-model-len=0"],
        ["--max-model-len=" + "9" * 900],
        ["--max-model-len"],
        ["--max-model-len=1", "--max-model-len=9999"],
        ["--max-num-seqs=100000"],
        ["--gpu-memory-utilization=1.5"],
        ["--gpu-memory-utilization=0.0"],
        ["--block-size=31"],
        ["--tool-call-parser=hermez"],
        ["--enable-auto-tool-choice"],
        ["--enable-auto-tool-choice=yes", "--tool-call-parser=hermes"],
        ["--enable-prefix-caching", "stray"],
        ["--quantization=fp8"],
        ["--config", "vllm.yaml"],
        ["--max-model-len.x=1"],
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_vllm(args: list[str]) -> None:
    assert not sure(*args)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["Qwen99ForCausalLM"]},
        {"architectures": ["Qwen3Model"]},
        {"architectures": []},
        {"quantization_config": {"quant_method": "fp8"}},
        {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
    ],
)
def test_an_unusual_model_is_left_to_vllm(change: dict[str, Any]) -> None:
    assert not sure(model=MODEL | change)


@pytest.mark.parametrize("change", [{"rope_scaling": {"factor": 2}}, {"max_position_embeddings": None}])
def test_a_length_is_left_to_vllm_where_the_models_own_is_not_plain(change: dict[str, Any]) -> None:
    assert not sure("--max-model-len=512", model=MODEL | change)
    assert sure(model=MODEL | change)


def test_workers_that_do_not_divide_the_heads_are_left_to_vllm() -> None:
    assert sure(gpus=4)
    assert not sure(gpus=8)


def test_a_type_that_may_not_suit_a_cpu_is_left_to_vllm() -> None:
    assert sure(dtype="float16", gpus=1)
    assert not sure(dtype="float16")


def test_an_argument_of_ours_that_this_vllm_lacks_is_left_to_vllm() -> None:
    without = {name: values for name, values in OPTIONS.values.items() if name != "--logprobs-mode"}
    assert not sure(values=without)
    assert not sure(values={**OPTIONS.values, "--logprobs-mode": ("raw_logprobs",)})
