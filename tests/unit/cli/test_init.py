"""`gymtrain init`: a run to begin with."""

from pathlib import Path

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_cli.init import Wanted, manifest, run_name, tool_parser
from gymtrain_cli.main import main

MCQA = "resources_servers/mcqa/configs/mcqa.yaml"


def spec_of(wanted: Wanted) -> GymTrainingRunSpec:
    """What the types make of it."""
    return GymTrainingRunSpec.model_validate(yaml.safe_load(manifest(wanted))["spec"])


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("model", ["hf://Qwen/Qwen3-4B", "pvc://weights/qwen", "hf://org/unheard-of"])
def test_it_is_what_the_types_take(gpus: int, tools: bool, model: str) -> None:
    spec = spec_of(Wanted([MCQA, "a/b.yaml"], model, gpus=gpus, tools=tools))
    assert spec.gym.config_paths == [MCQA, "a/b.yaml"]
    assert (spec.inference.gpus, spec.trainer.gpus, spec.trainer.processes_per_node) == (gpus, gpus, max(1, gpus))
    assert ("--tool-call-parser=hermes" in spec.inference.args) == (tools and "qwen" in model.lower())


@pytest.mark.parametrize(
    ("model", "parser"),
    [
        ("hf://Qwen/Qwen3-4B-Instruct-2507", "hermes"),
        ("hf://Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder"),
        ("hf://meta-llama/Llama-3.1-8B-Instruct", "llama3_json"),
        ("hf://mistralai/Ministral-8B-Instruct-2410", "mistral"),
        ("hf://deepseek-ai/DeepSeek-V3.1", "deepseek_v31"),
        ("hf://openai/gpt-oss-20b", "openai"),
        ("hf://zai-org/GLM-4.5-Air", "glm45"),
        ("hf://org/model", None),
    ],
)
def test_the_parser_of_tool_calls_is_the_models(model: str, parser: str | None) -> None:
    assert tool_parser(model) == parser


def test_a_model_of_unknown_calls_leaves_the_choice_to_the_user() -> None:
    assert "# - --tool-call-parser=PARSER" in manifest(Wanted([MCQA], "hf://org/model"))


def test_the_name_is_the_configs() -> None:
    assert run_name(Wanted(["a/Math_With__Judge.yaml"], "m")) == "math-with-judge"
    assert run_name(Wanted([MCQA], "m", name="mine")) == "mine"


def test_it_is_written_to_a_file_that_is_not_there_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    assert main(["init", MCQA, "-o", str(file)]) == 0
    assert yaml.safe_load(file.read_text())["metadata"]["name"] == "mcqa"
    assert main(["init", MCQA, "-o", str(file)]) == 2
    assert "is there already" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_source_that_is_none_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", MCQA, "--model", "Qwen/Qwen3"]) == 2
    assert "spec.model.source" in " ".join(capsys.readouterr().err.replace("│", " ").split())
