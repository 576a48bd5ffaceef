"""What the real vLLM refuses on the CPU, and that the image's notes let nothing pass that it refuses.

vLLM is imported once, in this process, as preflight does.
"""

import json
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_vllm.acceptance import refusals, surely_accepted
from gymtrain_vllm.arguments import build, variables
from gymtrain_vllm.vllm_internals import engine_knows_its_weights
from tests.support.specs import smallest_run

if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 32768  # the tiny model's max_position_embeddings


@dataclass
class Vllm:
    """This machine's vLLM and a tiny model."""

    model: Path
    notes: Any

    def says(self, *args: str, gpus: int = 0, has_model: bool = True) -> list[Finding]:
        """What preflight finds when vLLM is asked."""
        spec = _spec(args, gpus)
        return refusals(spec, build(spec, self.model, 8000), has_model=has_model)

    def sure(self, *args: str, gpus: int = 0) -> bool:
        """Whether it is not even asked."""
        spec = _spec(args, gpus)
        config = json.loads((self.model / "config.json").read_text())
        return surely_accepted(spec, build(spec, self.model, 8000), self.notes, config)


def _spec(args: tuple[str, ...], gpus: int) -> GymTrainingRunSpec:
    return GymTrainingRunSpec.model_validate(smallest_run(inference={"args": list(args), "gpus": gpus})["spec"])


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    folder = tmp_path_factory.mktemp("vllm")
    made = runpy.run_path(str(ROOT / "images" / "model-tiny" / "build.py"))
    tokenizer = made["build_tokenizer"]()
    made["build_model"](tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(_spec((), 0), {}, folder / "scratch").items():
            patch.setenv(name, value)
        for name in ("HOME", "TMPDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        from gymtrain_vllm import options
        from gymtrain_vllm.plugin import register

        register()  # the entry point's work, which is not installed here
        options.write(options.make(), folder / "notes.json")
        yield Vllm(folder / "model", options.load(folder / "notes.json"))


@pytest.mark.parametrize(
    ("args", "position", "words"),
    [
        (["--max-model-lenn=512"], 0, ["no argument --max-model-lenn", "did you mean --max-model-len?"]),
        (["--block-size=32", "--max_model_lenn", "512"], 1, ["did you mean --max-model-len?"]),
        (["--max-model-len=many"], 0, ["vLLM refuses it", "many"]),
        ([f"--max-model-len={LIMIT + 1}"], 0, [str(LIMIT + 1), str(LIMIT)]),
        (["--quantization=fp9"], 0, ["fp9"]),
        (["--block-size=32", "--speculative-config={model: x}"], 1, ["vLLM refuses it", "speculative-config"]),
        (["--gpu-memory-utilization=1.5"], 0, ["gpu_memory_utilization", "1"]),
        (["--enable-auto-tool-choice"], 0, ["requires --tool-call-parser"]),
        (["--enable-auto-tool-choice", "--tool-call-parser=hermez"], 1, ["invalid tool call parser: hermez"]),
        (["--help"], 0, ["help"]),
        (["--config", "/nowhere.yaml"], 0, ["/nowhere.yaml"]),
    ],
)
def test_what_vllm_refuses_is_told_by_argument(vllm: Vllm, args: list[str], position: int, words: list[str]) -> None:
    assert not vllm.sure(*args)
    (finding,) = vllm.says(*args)
    assert finding.where == f"spec.inference.args[{position}]"
    for word in words:
        assert word in finding.message
    assert len(finding.message) < 1000
    assert "\n" not in finding.message


def test_several_unknown_arguments_are_told_at_once(vllm: Vllm) -> None:
    found = vllm.says("--max-model-lenn=512", "--block-size=32", "--block-sice=32")
    assert [finding.where for finding in found] == ["spec.inference.args[0]", "spec.inference.args[2]"]


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize(
    "args",
    [
        [],
        [f"--max-model-len={LIMIT}", "--block-size=32"],
        ["--enable-auto-tool-choice", "--tool-call-parser=hermes"],
        ["--gpu-memory-utilization=0.9", "--max-num-seqs=256", "--enable-prefix-caching"],
        ["--max-num-seqs", "1", "--enforce-eager", "--no-enable-prefix-caching"],
    ],
)
def test_what_passes_by_the_notes_passes_with_vllm(vllm: Vllm, args: list[str], gpus: int) -> None:
    assert vllm.sure(*args, gpus=gpus)
    assert vllm.says(*args, gpus=gpus) == []


@pytest.mark.parametrize("args", [["--max-model-le=512"], ["--max-num-batched-tokens=4k"], ["--kv-cache-dtype=auto"]])
def test_what_the_notes_do_not_know_is_vllms_to_let_pass(vllm: Vllm, args: list[str]) -> None:
    assert not vllm.sure(*args)
    assert vllm.says(*args) == []


def test_what_only_a_gpu_can_do_is_not_refused_for_want_of_one(vllm: Vllm) -> None:
    assert vllm.says("--quantization=fp8", "--enable-sleep-mode", gpus=1) == []


def test_an_unknown_quantization_is_refused_for_gpus_too(vllm: Vllm) -> None:
    (finding,) = vllm.says("--quantization=fp9", gpus=1)
    assert finding.where == "spec.inference.args[0]"
    assert "unknown quantization fp9" in finding.message


def test_workers_that_do_not_divide_the_heads_are_refused(vllm: Vllm) -> None:
    (finding,) = vllm.says(gpus=3)
    assert finding.where == "spec.inference.gpus"
    assert "divisible by tensor parallel size" in finding.message


def test_more_workers_than_gpus_are_refused(vllm: Vllm) -> None:
    (finding,) = vllm.says("--tensor-parallel-size=2", gpus=1)
    assert finding.where == "spec.inference.args[0]"
    assert "need 2 GPUs, and a pod has 1" in finding.message


def test_without_a_model_the_arguments_alone_are_judged(vllm: Vllm) -> None:
    assert vllm.says(f"--max-model-len={LIMIT + 1}", has_model=False) == []


def test_reserved_arguments_do_not_come_in_by_a_file(vllm: Vllm, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("max-model-len: 256\nserved-model-name: mine\n")
    (finding,) = vllm.says("--config", str(file))
    assert finding.where == "spec.inference.args[0]"
    assert f"{file}: --served-model-name can't be set" in finding.message
    file.write_text("max-model-len: 256\n")
    assert vllm.says("--config", str(file)) == []


def test_how_many_api_servers_there_are_is_said_by_the_run_itself(vllm: Vllm, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("api-server-count: 2\n")
    (finding,) = vllm.says("--config", str(file))
    if not engine_knows_its_weights():
        assert (
            "can't be set: this release of vLLM keeps the version of its weights in the API server" in finding.message
        )
        return
    assert "the number of API servers belongs into spec.inference.args itself" in finding.message
    assert vllm.says("--api-server-count=2") == []
    (finding,) = vllm.says("--api-server-count=0")
    assert (finding.where, "at least 1" in finding.message) == ("spec.inference.args[0]", True)
