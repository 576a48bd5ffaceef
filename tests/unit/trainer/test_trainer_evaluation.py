"""Evaluations of whole training processes: with a framework that needs no torch, real rollouts and a real agent."""

import asyncio
import csv
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gymtrain_trainer import framework
from gymtrain_trainer.checkpoints.folder import BEST
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.evaluation import evaluations as evaluations_module
from gymtrain_trainer.evaluation.best import EVALUATION_FILE
from gymtrain_trainer.framework import FRAMEWORKS
from gymtrain_trainer.monitoring.evaluation_scores import ALL
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.step_report import StepReport
from gymtrain_trainer.stopping import StopSignal
from tests.unit.trainer.plain_framework import Number, Plain, PlainTrainer
from tests.unit.trainer.trainer_agent import AgentThread, good_answer
from tests.unit.trainer.trainer_vllm import make_context, run_process


class Pods:
    """vLLM, as far as weights go: knows when each version came."""

    def __init__(self) -> None:
        self.url = ""
        self.labels: list[str] = []

    def on_pause(self, syncs: int) -> None:
        """Nobody to pause."""

    def load(self, label: str, tensors: dict[str, Number]) -> None:
        self.labels.append(label)


class Scene:
    """One process after the other, in one folder."""

    def __init__(self, folder: Path, served: AgentThread, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch
        self.agent = served.agent
        self.pods = Pods()
        self.evaluated: list[tuple[int, str]] = []  # row, and what the pods held when it was asked for
        self.trained_meanwhile = 0
        self.reward: Callable[[dict[str, Any]], float] = lambda row: 1.0
        self.on_evaluated: Callable[[dict[str, Any]], None] = lambda row: None
        self.agent.behaviour = self._answer
        self._running = 0

    async def _answer(self, row: dict[str, Any], number: int) -> web.Response:
        if row["number"] < 1000:
            self.trained_meanwhile += self._running > 0
            return good_answer(row)
        self._running += 1
        try:
            self.evaluated.append((row["number"], self.pods.labels[-1]))
            await asyncio.to_thread(self.on_evaluated, row)
            assert self.evaluated[-1][1] == self.pods.labels[-1] or self._running > 1
            return good_answer(row, self.reward(row))
        finally:
            self._running -= 1

    def run(
        self, stop: StopSignal | None = None, datasets: int = 1, evaluation: Any = None, steps: int = 4, **rollout: Any
    ) -> ProgressBoard:
        """One process to its end."""
        (self._folder / "empty").mkdir(exist_ok=True)
        self.pods = Pods()
        task = {"reasoningGym": {"task": "chain_sum", "size": 4}}
        spec: dict[str, Any] = {
            "trainer": {"config": {"steps": steps}},
            "rollout": {"maxConcurrent": 4, **rollout},
            "data": {"train": [task], "validation": [task] * datasets},
            "evaluation": evaluation,
        }
        self.context = make_context(self._folder, self._folder / "empty", self.agent.url, spec)
        board = run_process(self.context, self.pods, stop or StopSignal(), self._patch.setattr)
        assert board is not None
        return board

    @property
    def rows(self) -> list[dict[str, str]]:
        """evaluations.csv."""
        return list(csv.DictReader((self.folder / "evaluations.csv").read_text().splitlines()))

    @property
    def folder(self) -> Path:
        return self._folder / "checkpoints"

    @property
    def steps(self) -> list[int]:
        """That were evaluated, by the file."""
        return [int(row["step"]) for row in self.rows if row["environment"] == ALL]


@pytest.fixture
def scene(tmp_path: Path, served: AgentThread, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setitem(FRAMEWORKS, "plain", "tests.unit.trainer.plain_framework")
    monkeypatch.setattr(framework, "DEFAULT", "plain")
    monkeypatch.setattr(evaluations_module, "_LOOK_SECONDS", 0.05)
    return Scene(tmp_path, served, monkeypatch)


def by_step(scene: Scene) -> Callable[[dict[str, Any]], float]:
    """A reward that says which sync made the weights: 0.1 for the first, and so on."""
    return lambda row: len(scene.pods.labels) / 10


def test_each_score_is_of_one_weight_version_and_every_task(scene: Scene) -> None:
    scene.reward = by_step(scene)
    scene.on_evaluated = lambda row: time.sleep(0.02)
    board = scene.run(evaluation={"everySteps": 2, "samplesPerTask": 2, "maxConcurrent": 2}, datasets=2)
    assert scene.steps == [0, 2, 4]
    totals = [row for row in scene.rows if row["environment"] == ALL]
    assert [row["version"] for row in totals] == ["math:2:1", "math:2:3", "math:2:5"]
    assert [float(row["reward"]) for row in totals] == [0.1, 0.3, 0.5], "all rollouts of each by its own weights"
    assert {row["tasks"] for row in totals} == {"8"}
    wanted = sorted([*range(1000, 1004), *range(1010, 1014)] * 2)
    for label in ("math:2:1", "math:2:3", "math:2:5"):
        assert sorted(number for number, held in scene.evaluated if held == label) == wanted
    progress = board.snapshot()
    assert (progress.validation_reward, progress.validation_step) == (0.5, 4)
    assert (progress.best_validation_reward, progress.best_step) == (0.5, 4)
    assert board.evaluation()["adder"]["reward"] == 0.5


def test_the_next_sync_waits_for_it_and_the_step_does_not(scene: Scene) -> None:
    held: list[int] = []
    scene.on_evaluated = lambda row: (time.sleep(0.2), held.append(Plain.trainer.step if Plain.trainer else 0))  # type: ignore[func-returns-value, assignment]
    scene.run(evaluation={"everySteps": 2}, steps=4)
    assert len({label for _, label in scene.evaluated}) == 3
    assert max(held[:4]) == 1, "the trainer went on to step 1 beside the evaluation before it, and no further"
    assert scene.trained_meanwhile, "rollouts of the training went on"


def test_no_training_rollout_begins_beside_it_where_the_run_says_so(scene: Scene) -> None:
    scene.on_evaluated = lambda row: time.sleep(0.1)
    scene.run(evaluation={"everySteps": 1, "whileTraining": False, "atStart": False}, steps=3, maxStaleness=0)
    assert scene.steps == [1, 2, 3]
    assert scene.trained_meanwhile == 0


def test_what_has_not_ended_by_the_deadline_failed(scene: Scene) -> None:
    scene.on_evaluated = lambda row: time.sleep(0 if row["number"] < 1003 else 7)
    scene.run(evaluation={"timeoutSeconds": 5, "atEnd": False}, steps=1)
    (row,) = [row for row in scene.rows if row["environment"] == ALL]
    assert (row["tasks"], row["rollouts"], row["failed"], row["failures"]) == ("3", "3", "1", "deadline 1")


def test_a_failure_is_no_reward_unless_the_run_says_so(scene: Scene) -> None:
    answer = scene.agent.behaviour

    def fails(row: dict[str, Any], number: int) -> Any:
        if row["number"] == 1000:
            item = good_answer(row)
            body = json.loads(str(item.text))
            return web.json_response(body | {"reward": "none"})
        return answer(row, number)

    scene.agent.behaviour = fails
    scene.run(evaluation={"atEnd": False}, steps=1, maxAttempts=1)
    (row,) = [row for row in scene.rows if row["environment"] == ALL]
    assert (row["reward"], row["tasks"], row["failures"], row["zeroed"]) == ("1.0", "3", "environment 1", "0")


def test_a_zeroed_failure_counts_as_zero_and_is_told(scene: Scene) -> None:
    answer = scene.agent.behaviour

    def fails(row: dict[str, Any], number: int) -> Any:
        if row["number"] == 1000:
            return web.json_response(json.loads(str(good_answer(row).text)) | {"reward": "none"})
        return answer(row, number)

    scene.agent.behaviour = fails
    scene.run(evaluation={"atEnd": False}, steps=1, onFailure={"environment": "Zero"})
    (row,) = [row for row in scene.rows if row["environment"] == ALL]
    assert (row["reward"], row["tasks"], row["failed"], row["zeroed"]) == ("0.75", "4", "1", "1")


def test_the_best_checkpoint_stays_when_the_framework_removes_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    save = PlainTrainer.save_checkpoint

    def rotating(self: PlainTrainer) -> None:
        for other in self._parts.context.run_folder.glob("checkpoint-*"):
            for file in other.iterdir():
                file.unlink()
            other.rmdir()
        save(self)

    monkeypatch.setattr(PlainTrainer, "save_checkpoint", rotating)
    rewards = {1: 0.9, 2: 0.2, 3: 0.6, 4: 0.6, 5: 0.1}
    scene.reward = lambda row: rewards[len(scene.pods.labels)]
    board = scene.run(evaluation={"everySteps": 1})
    best = scene.folder / BEST
    assert sorted(path.name for path in scene.folder.glob("checkpoint-*")) == ["checkpoint-4"]
    assert json.loads((best / "plain.json").read_text())["step"] == 2, "of equal ones the earliest"
    assert json.loads((best / EVALUATION_FILE).read_text())[0]["reward"] == 0.6
    assert (best / "gymtrain.json").exists()
    assert board.snapshot().best_step == 0, "the model before training was better, and has no checkpoint"


def test_a_last_step_that_is_the_best_is_kept(scene: Scene) -> None:
    scene.reward = by_step(scene)
    scene.run(evaluation={"everySteps": 0}, steps=2)
    assert json.loads((scene.folder / BEST / "plain.json").read_text())["step"] == 2


def test_a_process_that_goes_on_repeats_no_evaluation_and_knows_the_best(scene: Scene) -> None:
    scene.reward = by_step(scene)
    scene.run(evaluation={"everySteps": 2}, steps=4)
    before = scene.rows
    scene.reward = lambda row: 0.2
    scene.evaluated.clear()
    board = scene.run(evaluation={"everySteps": 2}, steps=6)
    assert scene.steps == [0, 2, 4, 6]
    assert scene.rows[: len(before)] == before
    assert len(scene.evaluated) == 4
    progress = board.snapshot()
    assert (progress.validation_reward, progress.best_validation_reward, progress.best_step) == (0.2, 0.5, 4)
    assert json.loads((scene.folder / BEST / "plain.json").read_text())["step"] == 4


def test_rows_and_a_best_of_later_steps_than_the_checkpoint_are_removed(scene: Scene) -> None:
    scene.reward = by_step(scene)
    scene.run(evaluation={"everySteps": 2}, steps=4)
    for step in (3, 4):
        (scene.folder / f"checkpoint-{step}" / "gymtrain.json").unlink()
    scene.reward = lambda row: 0.01
    board = scene.run(evaluation={"everySteps": 2}, steps=4)
    assert scene.steps == [0, 2, 4]
    assert [row["reward"] for row in scene.rows if row["environment"] == ALL] == ["0.1", "0.3", "0.01"]
    assert board.snapshot().best_step == 2
    assert json.loads((scene.folder / BEST / "plain.json").read_text())["step"] == 4, "the best that is there"


def test_sigterm_ends_an_evaluation_at_once_and_it_is_made_again(scene: Scene) -> None:
    stop, begun = StopSignal(), threading.Event()

    def hangs(row: dict[str, Any]) -> None:
        if len(scene.pods.labels) == 3:
            begun.set()
            stop.requested = True
            time.sleep(1.0)

    scene.on_evaluated = hangs
    began = time.monotonic()
    with pytest.raises(InterruptedBySignal):
        scene.run(stop, evaluation={"everySteps": 2}, steps=2)
    assert begun.is_set()
    assert time.monotonic() - began < 60
    assert scene.steps == [0]
    scene.on_evaluated = lambda row: None
    scene.run(evaluation={"everySteps": 2}, steps=2)
    assert scene.steps == [0, 2]


def test_the_log_has_a_line_for_each(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.run(evaluation={"everySteps": 0, "atStart": False}, steps=1)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"event"')]
    (line,) = [line for line in lines if line["event"] == "evaluation"]
    assert (line["step"], line["version"], line["environments"]["adder"]["reward"]) == (1, "math:2:2", 1.0)


def test_a_run_without_validation_data_writes_no_file(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(StepReport, "on_save", lambda self, steps: asked.append("save"))
    made: Context = make_context(
        scene.folder.parent, scene.folder.parent, scene.agent.url, {"trainer": {"config": {"steps": 1}}}
    )
    run_process(made, scene.pods, StopSignal(), monkeypatch.setattr)
    assert asked
    assert not (scene.folder / "evaluations.csv").exists()
