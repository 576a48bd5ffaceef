"""A whole training process with TRL: what train.py puts together, on a model of 0.1 M parameters.

The agent samples from a copy of the weights that the transport was given, as vLLM would.
"""

import csv
import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from gymtrain_trainer.checkpoints import folder
from gymtrain_trainer.checkpoints.folder import checkpoint_folder, last_checkpoint
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.trl.steps import StepTeller
from gymtrain_trainer.weights import SyncNumberFile
from tests.unit.trainer.test_trainer_entry import context
from tests.unit.trainer.trainer_agent import AgentThread
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process

pytestmark = pytest.mark.torch


@pytest.fixture
def process(
    tmp_path: Path,
    tiny_model: Path,
    served: AgentThread,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[VLLM, ProgressBoard, Context]]:
    """Runs one training process to its end."""
    monkeypatch.setenv("GYMTRAIN_CHECK_SAMPLES", "1")

    def run(
        stale_from: int | None = None,
        stop: StopSignal | None = None,
        on_pause: Callable[[int], None] | None = None,
        rollout: dict[str, Any] | None = None,
        resume_from: str | None = None,
        evaluation: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None,
        repeats: bool = False,
        **config: Any,
    ) -> tuple[VLLM, ProgressBoard, Context]:
        vllm = VLLM(tiny_model)
        vllm.repeats = repeats
        vllm.stale_from = stale_from
        vllm.on_pause = on_pause or vllm.on_pause
        served.agent.behaviour = vllm.answer
        spec: dict[str, Any] = {"rollout": rollout or {}, "resumeFrom": resume_from}
        if lora is not None:
            spec["model"] = {"source": "pvc://models/tiny", "lora": lora}
        if evaluation is not None:
            task = {"reasoningGym": {"task": "chain_sum", "size": 4}}
            spec |= {"data": {"train": [task], "validation": [task]}, "evaluation": evaluation}
        made = make_context(tmp_path, tiny_model, served.agent.url, spec, **config)
        board = run_process(made, vllm, stop or StopSignal(), monkeypatch.setattr)
        assert board is not None
        return vllm, board, made

    return run


def events(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"event"')]
    return [line for line in lines if line["event"] == event]


def test_a_run_trains_saves_and_no_sample_is_wrong(
    process: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    vllm, board, made = process()
    progress = board.snapshot()
    assert (progress.step, progress.rollouts >= 32, progress.weight_version) == (4, True, vllm.labels[-1])
    assert [alarm.reason for alarm in progress.alarms if alarm.reason != "KLHigh"] == []  # the learning rate is huge
    assert board.numbers()["kl"] >= 0.0
    checkpoint = last_checkpoint(made.run_folder, made.run.uid)
    assert checkpoint is not None
    assert checkpoint.state.step == 4
    (total,) = events(capsys, "sample_check_total")
    assert total["samples"] >= 32
    assert (total["wrong"], total["unchecked"]) == (0, 0)


def test_weights_that_do_not_arrive_are_found_by_the_checker(
    process: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    process(stale_from=2)
    (total,) = events(capsys, "sample_check_total")
    assert total["wrong"] > 0


def test_a_process_that_goes_on_with_an_attempt_uses_labels_of_its_own(process: Callable[..., Any]) -> None:
    first, _, made = process(max_steps=2)
    used = SyncNumberFile(made.run_folder, made.attempt).last()
    second, board, _ = process(max_steps=4)
    assert board.snapshot().step == 4
    assert not set(first.labels) & set(second.labels)
    assert int(second.labels[0].rpartition(":")[2]) == used + 1


def test_a_full_disk_at_a_checkpoint_costs_that_checkpoint_alone(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder.write_state

    def full(folder: Path, state: Any) -> None:
        if state.step == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "gymtrain.json"))
        real(folder, state)

    monkeypatch.setattr("gymtrain_trainer.checkpoints.saving.write_state", full)
    _, board, made = process()
    assert board.snapshot().step == 4
    (alarm,) = [alarm for alarm in board.snapshot().alarms if alarm.reason == "CheckpointFailed"]
    assert "PersistentVolumeClaim ck" in alarm.message
    found = last_checkpoint(made.run_folder, made.run.uid)
    assert found is not None
    assert found.state.step == 2

    monkeypatch.setattr("gymtrain_trainer.checkpoints.saving.write_state", real)
    _, board, _ = process(max_steps=6)
    assert board.snapshot().step == 6
    assert "CheckpointFailed" not in [alarm.reason for alarm in board.snapshot().alarms]


# One group a step, one after the other: the groups of the first N steps are the first N rows.
IN_ORDER = {"rollout": {"maxConcurrent": 8}, "num_generations": 8}


@pytest.mark.parametrize("logging", [{"logging_steps": 2}, {"logging_strategy": "no"}], ids=["between", "none"])
def test_a_checkpoint_without_a_report_holds_the_place_of_its_step(
    process: Callable[..., Any], logging: dict[str, Any]
) -> None:
    _, _, made = process(max_steps=3, save_steps=3, **IN_ORDER, **logging)
    checkpoint = last_checkpoint(made.run_folder, made.run.uid)
    assert checkpoint is not None
    assert (checkpoint.state.step, checkpoint.state.position) == (3, 3)


def test_with_a_token_budget_each_step_is_credited_with_its_own_samples(process: Callable[..., Any]) -> None:
    _, _, made = process(max_steps=6, save_steps=6, token_budget=37)
    with (made.run_folder / "rewards.csv").open(newline="") as file:
        ours = [int(row["tokens"]) for row in csv.DictReader(file)]
    state = json.loads((made.run_folder / "checkpoint-6" / "trainer_state.json").read_text())
    theirs = [int(entry["batch/trained_tokens_per_step"]) for entry in state["log_history"] if "loss" in entry]
    assert ours == theirs
    assert len(set(ours)) > 1, "the steps differ, or the test proves nothing"


@pytest.mark.parametrize("resume_from", ["earlier", "earlier/best"])
def test_a_run_goes_on_from_another_runs_checkpoint_in_a_folder_of_its_own(
    process: Callable[..., Any], resume_from: str
) -> None:
    _, _, first = process(max_steps=2, **IN_ORDER)
    earlier = first.paths.resume / "earlier"
    earlier.parent.mkdir()
    first.run_folder.rename(earlier)
    if resume_from.endswith("best"):  # all that is left
        (earlier / "checkpoint-2").rename(earlier / "best")
    before = sorted(path.name for path in earlier.iterdir())

    _, board, made = process(max_steps=4, resume_from=resume_from, **IN_ORDER)
    assert board.snapshot().step == 4
    assert "position 2, as it is the earlier run's" in board.snapshot().notices[0].message
    checkpoint = last_checkpoint(made.run_folder, made.owner)
    assert checkpoint is not None
    assert (checkpoint.state.step, checkpoint.state.position) == (4, 4)
    steps = [row["step"] for row in csv.DictReader((made.run_folder / "rewards.csv").read_text().splitlines())]
    assert steps == ["3", "4"], "its weights, optimizer and step went on"
    assert sorted(path.name for path in earlier.iterdir()) == before


@pytest.mark.parametrize(
    ("lora", "weights"),
    [
        (None, "model.safetensors"),
        ({"r": 4, "target_modules": "all-linear", "lora_dropout": 0.3}, "adapter_model.safetensors"),
    ],
    ids=["all-weights", "adapter"],
)
def test_what_goes_on_from_a_checkpoint_ends_as_what_was_never_stopped_to_the_last_bit(
    process: Callable[..., Any], tmp_path: Path, lora: dict[str, Any] | None, weights: str
) -> None:
    """Weights, optimizer, scheduler, and random numbers, which an adapter's dropout draws in each step."""
    same: dict[str, Any] = {"rollout": {"maxConcurrent": 8, "maxStaleness": 0}, "num_generations": 8}
    same |= {"lora": lora, "repeats": True, "max_steps": 4, "lr_scheduler_type": "cosine", "warmup_steps": 1}
    _, _, made = process(**same)
    undisturbed = checkpoint_folder(made.run_folder, 4).rename(tmp_path / "undisturbed")

    vllm, _, _ = process(**same)
    assert len(vllm.labels) == 3, "before its first step, which is the third, and after each of two"
    resumed = checkpoint_folder(made.run_folder, 4)
    assert bits(resumed) == bits(undisturbed)
    assert {weights, "optimizer.pt", "rng_state.pth", "scheduler.pt"} <= bits(resumed).keys()


def test_no_time_goes_into_checksums_that_nothing_reads(process: Callable[..., Any]) -> None:
    _, _, made = process(max_steps=1, save_steps=1, **IN_ORDER)
    with zipfile.ZipFile(checkpoint_folder(made.run_folder, 1) / "optimizer.pt") as file:
        assert {entry.CRC for entry in file.infolist()} == {0}


def bits(checkpoint: Path) -> dict[str, Any]:
    """All tensors and numbers of a checkpoint's files, by file."""
    import torch
    from safetensors.torch import load_file

    read = {path.name: load_file(path) for path in checkpoint.glob("*.safetensors")}
    read |= {path.name: torch.load(path, weights_only=False) for path in checkpoint.glob("*.pt*")}
    return {name: _without_tensors(content) for name, content in read.items()}


def _without_tensors(content: Any) -> Any:
    """Lists of numbers in their place, which can be compared."""
    if hasattr(content, "tolist"):  # of torch or numpy
        return content.tolist()
    if isinstance(content, dict):
        return {key: _without_tensors(value) for key, value in content.items()}
    return [_without_tensors(one) for one in content] if isinstance(content, list | tuple) else content


def test_sigterm_during_a_sync_ends_with_the_checkpoint_of_its_step(
    process: Callable[..., Any], tmp_path: Path
) -> None:
    stop = StopSignal()

    def on_pause(syncs: int) -> None:
        if syncs == 3:  # one before the first step, then one after each
            stop.requested = True
            stop.check()

    with pytest.raises(InterruptedBySignal):
        process(stop=stop, on_pause=on_pause, max_steps=9, save_steps=100, **IN_ORDER)
    _ends_at(tmp_path, 3)


def test_sigterm_during_a_step_ends_with_its_checkpoint(
    process: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, begin = StopSignal(), StepTeller.on_step_begin

    def on_step_begin(self: StepTeller, args: Any, state: Any, control: Any, **more: Any) -> None:
        begin(self, args, state, control, **more)
        stop.requested = state.global_step == 2

    monkeypatch.setattr(StepTeller, "on_step_begin", on_step_begin)
    with pytest.raises(InterruptedBySignal):
        process(stop=stop, max_steps=9, save_steps=100, **IN_ORDER)
    _ends_at(tmp_path, 3)


def _ends_at(folder: Path, step: int) -> None:
    """The last checkpoint is of that step and of the same place in the data, and the step is on record."""
    made = context(folder)
    checkpoint = last_checkpoint(made.run_folder, made.run.uid)
    assert checkpoint is not None
    assert (checkpoint.state.step, checkpoint.state.position) == (step, step)
    assert len((made.run_folder / "rewards.csv").read_text().splitlines()) == 1 + step


def evaluated(made: Context) -> list[tuple[int, str]]:
    """Steps and weight versions, by evaluations.csv."""
    rows = csv.DictReader((made.run_folder / "evaluations.csv").read_text().splitlines())
    return [(int(row["step"]), row["version"]) for row in rows if row["environment"] == "(all)"]


def test_evaluations_of_trls_trainer_save_their_steps_and_reach_its_log(process: Callable[..., Any]) -> None:
    vllm, board, made = process(evaluation={"everySteps": 2}, max_steps=4, save_steps=100, save_total_limit=1)
    assert evaluated(made) == [(0, vllm.labels[0]), (2, vllm.labels[2]), (4, vllm.labels[4])]
    assert json.loads((made.run_folder / "best" / "trainer_state.json").read_text())["global_step"] in (2, 4)
    assert [path.name for path in made.run_folder.glob("checkpoint-*")] == ["checkpoint-4"]
    state = json.loads((made.run_folder / "checkpoint-4" / "trainer_state.json").read_text())
    assert [entry["eval/step"] for entry in state["log_history"] if "eval/reward" in entry][:2] == [0.0, 2.0]
    assert board.snapshot().validation_step == 4


def test_a_run_that_went_on_at_its_end_makes_the_evaluation_that_was_cut_off(process: Callable[..., Any]) -> None:
    _, _, made = process(evaluation={"everySteps": 0}, max_steps=2)
    file = made.run_folder / "evaluations.csv"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("2,")))
    process(evaluation={"everySteps": 0}, max_steps=2)
    assert [step for step, _ in evaluated(made)] == [0, 2]


def test_with_fewer_syncs_than_steps_an_evaluation_is_over_before_the_next_checkpoint(
    process: Callable[..., Any],
) -> None:
    vllm, _, made = process(
        evaluation={"everySteps": 2, "atStart": False},
        max_steps=4,
        save_steps=1,
        save_total_limit=1,
        weight_sync_steps=2,
    )
    assert evaluated(made) == [(2, vllm.labels[1]), (4, vllm.labels[2])]
    assert (made.run_folder / "best" / "gymtrain.json").exists()
