"""The seam to training frameworks: one that nobody knows of trains a run, and TRL's libraries stay in its package."""

import ast
import asyncio
import csv
import errno
import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, get_args

import pytest
from aiohttp import web

from gymtrain_api.spec.training import FrameworkName
from gymtrain_trainer import framework
from gymtrain_trainer.checkpoints.folder import last_checkpoint
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import InterruptedBySignal, ServersError
from gymtrain_trainer.framework import DEFAULT, FRAMEWORKS, StepMeasures, load_framework
from gymtrain_trainer.preflight.main import preflight
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.group import Lost
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.step_report import StepReport
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import WeightSync
from tests.unit.trainer.plain_framework import Number, Plain, PlainTrainer
from tests.unit.trainer.trainer_agent import AgentThread, good_answer
from tests.unit.trainer.trainer_vllm import make_context, run_process

PACKAGE = Path(__file__).parents[3] / "trainer" / "gymtrain_trainer"


class Pods:
    """vLLM, as far as weights go."""

    def __init__(self) -> None:
        self.url = ""
        self.labels: list[str] = []
        self.weights: list[float] = []

    def on_pause(self, syncs: int) -> None:
        """Nobody to pause."""

    def load(self, label: str, tensors: dict[str, Number]) -> None:
        self.labels.append(label)
        self.weights.append(tensors["weight"].value)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that a second framework needs, and its being used."""
    monkeypatch.setitem(FRAMEWORKS, "plain", "tests.unit.trainer.plain_framework")
    monkeypatch.setattr(framework, "DEFAULT", "plain")


@pytest.fixture
def process(
    tmp_path: Path, served: AgentThread, plain: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Pods, ProgressBoard, Context, PlainTrainer]]:
    """Runs one training process to its end."""

    def run(
        stop: StopSignal | None = None,
        records: dict[str, Any] | None = None,
        servers: Future[None] | None = None,
        rollout: dict[str, Any] | None = None,
        **config: Any,
    ) -> tuple[Pods, ProgressBoard, Context, PlainTrainer]:
        pods = Pods()
        trainer = {"config": {"steps": 3} | config, "records": records or {}}
        spec = {"trainer": trainer, "rollout": {"maxConcurrent": 2} | (rollout or {})}
        (tmp_path / "empty").mkdir(exist_ok=True)  # the model's folder: it needs none
        made = make_context(tmp_path, tmp_path / "empty", served.agent.url, spec)
        board = run_process(made, pods, stop or StopSignal(), monkeypatch.setattr, servers)
        assert board is not None
        assert Plain.trainer is not None
        return pods, board, made, Plain.trainer

    return run


def first_untrained(trainer: PlainTrainer, begin: int) -> int:
    """Where a later attempt begins: groups end in any order."""
    trained = {sample.group_id for sample in trainer.trained}
    return next(number for number in itertools.count(begin) if number not in trained)


def test_a_second_framework_trains_with_a_package_and_a_line(process: Callable[..., Any]) -> None:
    pods, board, made, trainer = process()
    progress = board.snapshot()
    assert (progress.step, progress.max_steps, progress.reward) == (3, 3, 1.0)
    assert pods.labels == ["math:2:1", "math:2:2", "math:2:3", "math:2:4"]
    assert pods.weights == [0.0, 4.0, 8.0, 12.0], "each step's weights, of its four samples"
    assert progress.weight_version == "math:2:4"
    assert {len(sample.token_ids) for sample in trainer.trained} == {5}
    steps = [row["step"] for row in csv.DictReader((made.run_folder / "rewards.csv").read_text().splitlines())]
    assert steps == ["1", "2", "3"]
    assert {"loss", "kl", "ratio"} <= board.numbers().keys()
    assert "grad_norm" not in board.numbers(), "it doesn't measure that"
    checkpoint = last_checkpoint(made.run_folder, made.owner)
    assert checkpoint is not None
    assert (checkpoint.state.step, checkpoint.state.position) == (3, first_untrained(trainer, 0))
    assert json.loads((made.run_folder / "model" / "plain.json").read_text()) == {"weight": 12.0}


def test_it_goes_on_from_its_checkpoint(process: Callable[..., Any]) -> None:
    begin = first_untrained(process(steps=2)[3], 0)
    pods, board, made, trainer = process(steps=4)
    assert board.snapshot().step == 4
    assert pods.weights == [8.0, 12.0, 16.0]
    assert min(sample.group_id for sample in trainer.trained) >= begin
    found = last_checkpoint(made.run_folder, made.owner)
    assert found is not None
    assert found.state.position == first_untrained(trainer, begin)


def test_its_checkpoint_is_read_while_the_servers_come_up(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    process(steps=2)
    servers: Future[None] = Future()
    read = PlainTrainer.read_checkpoint

    def slowly(self: PlainTrainer, folder: Path) -> None:
        read(self, folder)
        servers.set_result(None)

    monkeypatch.setattr(PlainTrainer, "read_checkpoint", slowly)
    late = threading.Timer(20, servers.set_exception, [ServersError("nothing was read")])
    late.start()
    try:
        pods, board, *_ = process(steps=3, servers=servers)
    finally:
        late.cancel()
    assert board.snapshot().step == 3
    assert pods.weights == [8.0, 12.0]


def test_training_does_not_begin_where_the_servers_do_not_come_up(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: Future[None] = Future()
    servers.set_exception(ServersError("vLLM not ready after 900 s"))
    settled: list[object] = []
    monkeypatch.setattr(WeightSync, "settle", lambda self: settled.append(self))
    with pytest.raises(ServersError, match="vLLM not ready"):
        process(servers=servers)
    assert Plain.trainer is not None
    with pytest.raises(ServersError, match="vLLM not ready"):  # where ranks agree on an adapter's way before
        Plain.trainer.settle()
    assert settled == [], "the transport is chosen by what the servers say"


def test_its_samples_are_recorded_with_what_it_made_of_them(process: Callable[..., Any]) -> None:
    records = {"samples": "All", "format": "JSONL"}
    first = process(steps=2, records=records)[0]
    pods, _, made, trainer = process(steps=3, records=records)
    folder = made.run_folder / "records"
    rows = [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] * 4 + [2] * 4 + [3] * 4, "two groups of two rollouts a step"
    last = [(row["group"], row["rollout"], row["token_ids"], row["advantage"], row["ratio"]) for row in rows[-4:]]
    assert last == [(one.group_id, one.rollout, list(one.token_ids), 0.0, 1.0) for one in trainer.trained]
    assert [row["version"] for row in rows[3::4]] == [*first.labels[:2], pods.labels[0]]


def test_a_checkpoint_that_the_volume_does_not_take_costs_that_checkpoint_alone(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = PlainTrainer.save_checkpoint

    def full(self: PlainTrainer) -> None:
        made(self)
        if self.step == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PlainTrainer, "save_checkpoint", full)
    _, board, context, _ = process()
    assert board.snapshot().step == 3
    assert [alarm.reason for alarm in board.snapshot().alarms] == ["CheckpointFailed"]
    found = last_checkpoint(context.run_folder, context.owner)
    assert found is not None
    assert found.state.step == 2


def test_a_signal_ends_it_with_the_checkpoint_of_its_step(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop, reported = StopSignal(), StepReport.on_measures

    def on_measures(self: StepReport, steps: Any, measures: StepMeasures) -> None:
        reported(self, steps, measures)
        stop.requested = steps.done == 2

    monkeypatch.setattr(StepReport, "on_measures", on_measures)
    with pytest.raises(InterruptedBySignal):
        process(stop=stop, steps=9)
    found = last_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert found.state.step == 2
    assert not (tmp_path / "checkpoints" / "model").exists()


def test_rollouts_that_a_signal_ends_are_not_lost_and_their_rows_are_drawn_by_the_next_attempt(
    process: Callable[..., Any], served: AgentThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop, reported = StopSignal(), StepReport.on_measures
    signalled, refused = threading.Event(), threading.Event()
    lost: list[Lost] = []

    async def until_the_signal(row: dict[str, Any], number: int) -> Any:
        if number > 8:  # what two steps train on
            await asyncio.to_thread(signalled.wait, 20)
            refused.set()
            return web.Response(status=503)  # the server goes away as the trainer does
        return good_answer(row)

    def on_measures(self: StepReport, steps: Any, measures: StepMeasures) -> None:
        reported(self, steps, measures)
        if steps.done == 2:
            stop.request()
            signalled.set()
            refused.wait(5)
            time.sleep(0.5)  # a checkpoint of a large model takes longer

    served.agent.behaviour = until_the_signal
    monkeypatch.setattr(StepReport, "on_measures", on_measures)
    monkeypatch.setattr(RolloutReport, "rollout_lost", lambda self, agent, one: lost.append(one))
    with pytest.raises(InterruptedBySignal):
        process(stop=stop, steps=9, rollout={"maxAttempts": 1})
    found = last_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert Plain.trainer is not None
    assert (found.state.step, found.state.position) == (2, first_untrained(Plain.trainer, 0))
    assert lost == []


def test_preflight_asks_the_framework(plain: None, tmp_path: Path) -> None:
    model = tmp_path / "a-model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["X"]}')
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    environ = {"GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json"), "GYMTRAIN_ROOT": str(tmp_path)}
    make_context(tmp_path, model, "http://agent", {"trainer": {"config": {"steps": 3}}})
    verdict = preflight(load_framework(), environ)
    assert (verdict.findings, verdict.max_steps) == ([], 3)
    assert [warning.message for warning in verdict.warnings] == ["plain learns nothing"]
    make_context(tmp_path, model, "http://agent", {"trainer": {"config": {"stepps": 3}}})
    verdict = preflight(load_framework(), environ)
    assert [finding.where for finding in verdict.findings] == ["spec.trainer.config.stepps"]
    assert verdict.warnings == [], "what is known to be wrong is not rehearsed"


def test_the_resource_names_every_listed_framework() -> None:
    assert set(get_args(FrameworkName.__value__)) == set(FRAMEWORKS)
    assert DEFAULT in FRAMEWORKS


def test_the_resource_chooses_the_framework(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework, "DEFAULT", "TRL")
    assert type(load_framework("plain")) is not type(load_framework())


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_listed_framework_can_be_asked_without_its_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(load_framework(name).make_trainer)


def test_only_a_frameworks_own_package_names_it() -> None:
    """Import contracts hold the imports; this, the line where frameworks are listed."""
    packages = {module.rpartition(".")[0] for module in FRAMEWORKS.values()}
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in _modules(node)
        if any(module == package or module.startswith(f"{package}.") for package in packages)
    }
    folders = tuple(f"{package.rpartition('.')[2]}/" for package in packages)
    outside = {file for file in named if not file.startswith(folders)}
    assert outside == {"framework.py"}


def _modules(node: ast.AST) -> list[str]:
    """What an import, or a text, names."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
        case ast.Constant(value=str(text)):
            return [text]
    return []
