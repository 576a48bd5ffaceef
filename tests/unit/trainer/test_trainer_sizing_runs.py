"""The sizing of runs, the command, and the page that it fills."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.sizing import page
from gymtrain_trainer.sizing.command import main
from gymtrain_trainer.sizing.runs import Sizing, read_run, sizing_of
from gymtrain_trainer.sizing.shapes import BUILT_IN
from gymtrain_trainer.sizing.training import GIB, Adapter, host
from gymtrain_trainer.trl.settings import Batch

ROOT = Path(__file__).parents[3]


def spec(**parts: Any) -> GymTrainingRunSpec:
    """A run of Qwen3-4B on a GPU, with parts of the spec beside that."""
    trainer = {"gpus": 1, "config": {"max_steps": 1}} | parts.pop("trainer", {})
    return GymTrainingRunSpec.model_validate(
        {
            "model": {"source": "hf://Qwen/Qwen3-4B"} | parts.pop("model", {}),
            "gym": {"configPaths": ["a.yaml"]},
            "data": {"train": [{"source": "gym://a.jsonl"}]},
            "inference": {"gpus": 1, "args": ["--max-model-len=4096"]} | parts.pop("inference", {}),
            "trainer": trainer,
        }
        | parts
    )


def sized(**parts: Any) -> Sizing:
    return sizing_of(spec(**parts), None, 80)


# --- runs ---


def test_a_micro_batch_is_the_samples_at_their_longest() -> None:
    training = sized(trainer={"gpus": 1, "config": {"per_device_train_batch_size": 3}}).training
    assert (training.length, training.tokens) == (4096, 3 * 4096)


def test_the_default_of_a_micro_batch_is_the_trainers() -> None:
    batch = Batch.of(spec())
    assert batch.token_budget == 0
    assert sized().training.tokens == batch.per_device * 4096


def test_a_token_budget_is_the_micro_batch() -> None:
    training = sized(trainer={"gpus": 1, "config": {"token_budget": 9000}}).training
    assert training.tokens == 9000


def test_without_a_limit_samples_are_as_long_as_the_context() -> None:
    assert sized(inference={"args": []}).training.length == 40_960


def test_trls_default_is_gradient_checkpointing_without_sharding() -> None:
    training = sized().training
    assert (training.checkpointing, training.sharded, training.kept_checkpoints) == (True, False, 2)


def test_what_the_config_sets_counts() -> None:
    config = {"fsdp": True, "gradient_checkpointing": False, "save_total_limit": 5}
    training = sized(trainer={"gpus": 4, "processesPerNode": 4, "nodes": 2, "config": config}).training
    assert (training.sharded, training.checkpointing, training.kept_checkpoints) == (True, False, 5)
    assert training.processes == 8


def test_the_best_checkpoint_of_an_evaluated_run_takes_room_too() -> None:
    data = {"train": [{"source": "gym://a.jsonl"}], "validation": [{"source": "gym://b.jsonl"}]}
    assert sized(data=data).training.kept_checkpoints == 3
    assert sized(data=data, evaluation={"keepBest": False}).training.kept_checkpoints == 2


def test_an_adapter_is_read_by_pefts_names() -> None:
    assert sized(model={"lora": {"r": 4, "target_modules": ["o_proj"]}}).training.adapter == Adapter(4, ("o_proj",))
    assert sized(model={"lora": {"r": 4, "target_modules": "all-linear"}}).training.adapter == Adapter(4)
    assert sized(model={"lora": {}}).training.adapter == Adapter(8, ("q_proj", "v_proj"))


def test_adapters_in_vllm_take_memory() -> None:
    lora = {"lora": {"r": 64, "target_modules": "all-linear"}}
    sizing = sized(model=lora, trainer={"gpus": 1, "config": {}, "checkpoint": {"size": "9Gi"}})
    assert sizing.training.transport == "LoRAFilesystem"
    assert sizing.serving is not None
    assert sizing.serving.adapters == 6 * 2 * sizing.training.trained  # four versions behind, the newest, the next


def test_vllms_arguments_count() -> None:
    arguments = ["--gpu-memory-utilization", "0.5", "--tensor-parallel-size=2", "--max-model-len=1024"]
    serving = sized(inference={"gpus": 4, "args": arguments}).serving
    assert serving is not None
    assert (serving.utilization, serving.tensor_parallel, serving.length) == (0.5, 2, 1024)


def test_a_server_on_two_nodes_has_half_the_weights_and_the_cache_on_each_gpu() -> None:
    one, two = (sized(inference={"gpus": 4, "nodes": nodes}).serving for nodes in (1, 2))
    assert one is not None
    assert two is not None
    assert (two.tensor_parallel, two.pipeline_parallel) == (4, 2)
    (weights, _, cache), (half, _, half_cache) = one.needs().parts, two.needs().parts
    assert abs(weights.bytes - 2 * half.bytes) <= 2
    assert cache.bytes == 2 * half_cache.bytes


def test_the_gpus_of_a_pod_share_the_weights() -> None:
    serving = sized(inference={"gpus": 4}).serving
    assert serving is not None
    assert serving.tensor_parallel == 4


@pytest.mark.parametrize(("kind", "size"), [("limits", "20Gi"), ("requests", "10Gi")])
def test_the_memory_of_the_pod_is_compared(kind: str, size: str) -> None:
    sizing = sized(trainer={"gpus": 1, "config": {}, "resources": {kind: {"memory": size}}})
    assert host(sizing.training, sizing.host_memory).fits is (size == "20Gi")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"source": "hf://org/name"}}, "hf://org/name is none of the built-in shapes"),
        ({"trainer": {"gpus": 0}}, "spec.trainer.gpus is 0"),
        ({"trainer": {"gpus": 1, "image": "a:1", "command": ["train"]}}, "spec.trainer.command is another trainer"),
        ({"trainer": {"gpus": 1, "processesPerNode": 2}}, "processesPerNode is 2, with 1 GPUs"),
        ({"trainer": {"gpus": 1, "config": {"bf16": False}}}, "training in float32 isn't computed"),
        ({"trainer": {"gpus": 1, "config": {"fsdp_config": {"cpu_offload": True}}}}, "cpu_offload: True"),
        (
            {"trainer": {"gpus": 1, "config": {"fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}}}},
            "fsdp_config.state_dict_type: FULL_STATE_DICT isn't computed",
        ),
        ({"model": {"lora": {"target_modules": ".*_proj"}}}, r"target_modules: \.\*_proj isn't computed"),
        ({"model": {"lora": {"modules_to_save": ["lm_head"]}}}, "modules_to_save isn't computed"),
        ({"inference": {"args": ["--gpu-memory-utilization=most"]}}, "is no number: most"),
    ],
)
def test_what_is_not_computed_is_said(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        sized(**parts)


def test_a_shape_may_be_named_beside_the_run() -> None:
    run = spec(model={"source": "hf://org/name"})
    assert sizing_of(run, BUILT_IN["Qwen3-0.6B"], 80).training.shape.name == "Qwen3-0.6B"


def test_a_file_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Secret\n")
    with pytest.raises(SettingsError, match="has 0 objects of kind GymTrainingRun"):
        read_run(tmp_path / "a.yaml")


# --- the command ---


def test_the_command_says_that_a_run_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(ROOT / "examples" / "slurm-4-nodes.yaml")]) == 0
    assert "Everything fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    "shown",
    [
        "--run examples/slurm-4-nodes.yaml --gpu-memory 80",
        "Qwen3-8B --gpus 8 --length 32768 --fsdp --vllm-gpus 2",
    ],
)
def test_the_command_runs_as_docs_show_it(shown: str) -> None:
    command = [sys.executable, "-m", "gymtrain_trainer.sizing", *shown.split()]
    environment = {"PYTHONPATH": "api:trainer"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Everything fits" in done.stdout


def test_the_command_says_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Qwen3-8B", "--gpus", "8"]) == 1
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown
    assert "- trainer.config.fsdp: true" in shown


def test_what_the_command_proposes_fits_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Qwen3-8B", "--gpus", "8", "--fsdp"]) == 0


def test_json_has_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Qwen3-8B", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    training = report["needs"]["training GPU"]
    assert training["total"] == sum(training["parts"].values())
    assert training["room"] == 80 * GIB
    assert report["proposals"][0]["training_gpu"] <= 80 * GIB


def test_a_server_that_does_not_fit_is_told_how_many_gpus_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["Qwen3-8B", "--gpus=8", "--fsdp", "--length=32768"]
    assert main([*asked, "--vllm-gpu-memory=24", "--gpu-memory-utilization=0.9"]) == 1
    assert "vLLM fits with inference.gpus: 2" in capsys.readouterr().out


def test_a_pod_and_a_volume_that_are_too_small_are_told_their_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"gpus": 1, "config": {"per_device_train_batch_size": 1}, "checkpoint": {"size": "9Gi"}}
    run = spec(trainer=small | {"resources": {"limits": {"memory": "9Gi"}}})
    document = {"kind": "GymTrainingRun", "spec": run.model_dump(by_alias=True, exclude_none=True)}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(document))
    assert main(["--run", str(tmp_path / "a.yaml")]) == 1
    shown = capsys.readouterr().out
    assert "A trainer pod needs memory: 19Gi" in shown
    assert "trainer.checkpoint.size: 143Gi" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "none of the built-in shapes: Qwen3-0.6B"),
        (["Qwen3-8B", "--tokens", "100"], "a micro-batch holds at least one sample"),
    ],
)
def test_what_cannot_be_computed_is_neither_fit_nor_misfit(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--run examples/slurm-4-nodes.yaml" in capsys.readouterr().out


# --- the page ---


def test_the_committed_page_is_current() -> None:
    text = (ROOT / page.NAME).read_text()
    assert text == page.page(text)


def test_check_shows_the_difference_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / page.NAME
    path.parent.mkdir()
    wrong = (ROOT / page.NAME).read_text().replace("| computed |", "| guessed |", 1)
    path.write_text(wrong)
    assert page.main(["--root", str(tmp_path), "--check"]) == 1
    shown = capsys.readouterr()
    assert "guessed" in shown.out
    assert "python -m gymtrain_trainer.sizing.page" in shown.err
    assert path.read_text() == wrong
    assert page.main(["--root", str(tmp_path)]) == 0
    assert page.main(["--root", str(tmp_path), "--check"]) == 0


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="begin serving"):
        page.page("<!-- begin training -->\n<!-- end training -->\n")


def test_a_measured_row_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = page.Measured("Qwen3-8B", 1, 8, rank=0, tokens=8192, sharded=True, gib=41.0, where="H100, 2027-01-01")
    monkeypatch.setattr(page, "MEASURED", (row,))
    lines = page.page((ROOT / page.NAME).read_text()).splitlines()
    marked = [line for line in lines if "| measured: 41 (H100, 2027-01-01) |" in line]
    assert [line.split("|")[1:4] for line in marked] == [[" 8 ", " all ", " 8,192 "]]


def test_a_measured_row_of_other_lengths_stands_beside_what_is_computed_for_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = page.Measured("Qwen3-8B", 1, 2, rank=16, tokens=2560, sharded=True, gib=25.0, where="H100, 2027-01-01")
    text = (ROOT / page.NAME).read_text()

    def of_adapters() -> list[list[str]]:
        lines = page.page(text).partition("### Qwen3-8B")[2].splitlines()
        return [line.split("|")[3:6] for line in lines if line.startswith("| 2 | adapter |")][:3]

    monkeypatch.setattr(page, "MEASURED", ())
    short, long, _ = of_adapters()
    monkeypatch.setattr(page, "MEASURED", (row,))
    measured, *others = of_adapters()
    assert others == [short, long]
    assert measured[:2] == [" 2,560 ", " fsdp "]
    assert int(measured[2]) < int(short[2]) / 1.5, "shares, as in what was measured"
