"""The trackers of `report_to` with their real libraries: what they have of a run, and that they never end it.

What a tracker wrote is read back with its own reader.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("wandb")
pytest.importorskip("trackio")
pytest.importorskip("mlflow")

from gymtrain_trainer.context import Context
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.trl import reporters
from tests.unit.trainer.trainer_agent import AgentThread
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

UID = "1f2e3d4c-0000-4000-8000-000000000000"
SERIES = ("gymtrain/reward", "gymtrain/reward/adder", "gymtrain/staleness", "gymtrain/weight_sync_seconds", "loss")
ALL = ["tensorboard", "wandb", "trackio", "mlflow"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(os.environ)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def train(
    tmp_path: Path, tiny_model: Path, served: AgentThread, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Context, ProgressBoard]]:
    """Trains to the end with these trackers."""

    def run(*report_to: str, **config: Any) -> tuple[Context, ProgressBoard]:
        vllm = VLLM(tiny_model)
        served.agent.behaviour = vllm.answer
        made = make_context(tmp_path, tiny_model, served.agent.url, {}, report_to=list(report_to), **config)
        named = made.run.model_copy(update={"uid": UID})
        made = Context(named, made.paths, made.attempt, made.nodes, made.node_rank, made.port)
        board = run_process(made, vllm, StopSignal(), monkeypatch.setattr)
        assert board is not None
        return made, board

    return run


def failures(board: ProgressBoard) -> list[str]:
    return [alarm.message for alarm in board.snapshot().alarms if alarm.reason == "ReporterFailed"]


# --- readers ---


def tensorboard_steps(folder: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {tag: [event.step for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def wandb_records(folder: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of each run folder: the run, and what was logged."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    found = []
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        run: dict[str, Any] = {}
        logged = []
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                one = record.run
                run |= {"id": one.run_id, "name": one.display_name, "project": one.project, "group": one.run_group}
            if record.HasField("history"):
                items = record.history.item
                logged.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        found.append((run, logged))
    return found


def trackio_rows(name: str) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    rows: list[dict[str, Any]] = SQLiteStorage.get_logs("gymtrain", name)
    return rows


def mlflow_runs(folder: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("gymtrain")
    return client, list(client.search_runs([experiment.experiment_id]))


def test_every_tracker_has_the_series_of_a_run_over_its_attempts(train: Callable[..., Any]) -> None:
    train(*ALL, max_steps=2)
    made, board = train(*ALL, max_steps=4)
    assert board.snapshot().step == 4
    assert failures(board) == []
    folder, label = made.run_folder, "math-1f2e3d4c"

    steps = tensorboard_steps(folder)
    for name in SERIES:
        assert steps[f"train/{name}"] == [1, 2, 3, 4], name

    runs = wandb_records(folder)
    assert len(runs) == 2, "one folder an attempt, which wandb sync puts together by their id"
    assert {(run["id"], run["name"], run["project"], run["group"]) for run, _ in runs} == {
        (UID, label, "gymtrain", "lab")
    }
    logged = [row for _, rows in runs for row in rows]
    for name in SERIES:
        assert [row["train/global_step"] for row in logged if f"train/{name}" in row] == [1, 2, 3, 4], name
    tables = [row["gymtrain/rollouts"] for row in logged if "gymtrain/rollouts" in row]
    assert len(tables) >= 2
    assert all(table["_type"] == "table-file" and 1 <= table["nrows"] <= 4 for table in tables)

    rows = trackio_rows(label)
    for name in SERIES:
        assert [row["train/global_step"] for row in rows if f"train/{name}" in row] == [1, 2, 3, 4], name
    assert any("gymtrain/rollouts" in row for row in rows)

    client, found = mlflow_runs(folder)
    assert len(found) == 1, "a later attempt goes on with the run of the first"
    assert (found[0].info.run_name, found[0].info.status) == (label, "FINISHED")
    for name in SERIES:
        history = client.get_metric_history(found[0].info.run_id, name)
        assert [metric.step for metric in history] == [1, 2, 3, 4], name
    artifacts = {file.path for file in client.list_artifacts(found[0].info.run_id, "gymtrain")}
    assert "gymtrain/run.yaml" in artifacts
    assert "gymtrain/rollouts" in artifacts


def silent_server() -> socket.socket:
    """Takes connections, and never answers."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)


@pytest.mark.parametrize(
    ("tracker", "variables"),
    [
        ("wandb", {"WANDB_MODE": "online"}),
        ("wandb", {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}),
        ("trackio", {"TRACKIO_DIR": "/proc/none"}),
        ("wandb", {"WANDB_MODE": "nonsense"}),
    ],
)
def test_a_tracker_that_fails_ends_no_run_and_stops_no_other(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tracker: str, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reporters, "END_SECONDS", 20.0)
    made, board = train("tensorboard", tracker)
    assert board.snapshot().step == 4
    assert (made.run_folder / "model" / "config.json").exists()
    (message,) = failures(board)
    assert message.startswith(tracker)
    assert tensorboard_steps(made.run_folder)["train/gymtrain/reward"] == [1, 2, 3, 4]


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_that_hangs_holds_no_run_up(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    monkeypatch.setattr(reporters, "END_SECONDS", 2.0)
    with silent_server() as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name, value in {
            "WANDB_MODE": "online",
            "WANDB_API_KEY": "0" * 40,
            "WANDB_BASE_URL": url,
            "MLFLOW_TRACKING_URI": url,
        }.items():
            monkeypatch.setenv(name, value)
        began = time.monotonic()
        made, board = train("tensorboard", tracker)
    assert board.snapshot().step == 4
    assert time.monotonic() - began < 60
    assert failures(board), "its reports are missing, and that is said"
    assert (made.run_folder / "model" / "config.json").exists()
