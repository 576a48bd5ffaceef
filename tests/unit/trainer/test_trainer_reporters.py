"""The trackers of `report_to` with their real libraries: what they have of a run, and that they never end it.

What a tracker wrote is read back with its own reader.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("wandb")
pytest.importorskip("trackio")
pytest.importorskip("mlflow")

from gymtrain_api.wiring import TrainerProgress
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.trl.reporters import Reporters
from tests.unit.trainer.test_trainer_ranks import run_ranks
from tests.unit.trainer.trainer_vllm import make_context

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

UID = "1f2e3d4c-0000-4000-8000-000000000000"
SERIES = ("gymtrain/reward", "gymtrain/agents/adder/reward", "gymtrain/weight_sync_seconds", "loss")
ALL = ["tensorboard", "wandb", "trackio", "mlflow"]

type Train = Callable[..., tuple[Path, TrainerProgress]]


@pytest.fixture
def train(tmp_path: Path, tiny_model: Path) -> Train:
    """Trains to the end with these trackers, in a process of its own: they keep settings while theirs lives, and
    read some as they are imported.
    """

    def run(*report_to: str, environment: dict[str, str] | None = None, **config: Any) -> tuple[Path, TrainerProgress]:
        made = make_context(tmp_path, tiny_model, "http://127.0.0.1:9", {}, report_to=list(report_to), **config)
        named = made.run.model_copy(update={"uid": UID})
        (tmp_path / "run.json").write_text(named.model_dump_json(by_alias=True))
        variables = {"WANDB_MODE": "offline", "HOME": str(tmp_path)} | (environment or {})
        assert run_ranks("trainer_rank", str(tmp_path), environment=variables, processes=1, fork=False) == [0]
        progress = TrainerProgress.model_validate_json((tmp_path / "progress.json").read_text())
        return made.run_folder, progress

    return run


def failures(progress: TrainerProgress) -> list[str]:
    return [alarm.message for alarm in progress.alarms if alarm.reason == "ReporterFailed"]


# --- readers ---


def tensorboard_steps(folder: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {tag: [event.step for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def wandb_records(folder: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of each run folder: the run, and what was logged."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        run: dict[str, Any] = {}
        logged = []
        for data in leveldb_records(file.read_bytes()):
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


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Of a .wandb file: a header of 7 bytes, then a log as LevelDB writes it."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield record
            record = b""


def trackio_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """As its own server reads them, in a process that has its folder."""
    code = (
        "import json, sys; from trackio.sqlite_storage import SQLiteStorage; "
        "print(json.dumps(SQLiteStorage.get_logs('gymtrain', sys.argv[1]), default=str))"
    )
    environment = os.environ | {"TRACKIO_DIR": str(folder / "trackio"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, name], env=environment, stdout=subprocess.PIPE, check=True, timeout=120
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def mlflow_runs(folder: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("gymtrain")
    return client, list(client.search_runs([experiment.experiment_id]))


def test_every_tracker_has_the_series_of_a_run_over_its_attempts(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(*ALL, max_steps=2)
    folder, progress = train(*ALL, max_steps=4)
    assert progress.step == 4
    assert failures(progress) == []
    label = "math-1f2e3d4c"

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
    tables = list((folder / "wandb").rglob("*.table.json"))
    assert tables
    assert json.loads(tables[0].read_text())["columns"][:3] == ["step", "agent", "reward"]

    rows = trackio_rows(folder, label)
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
    assert {"gymtrain/run.yaml", "gymtrain/rollouts"} <= artifacts


@pytest.mark.large  # libraries try for a minute
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
    train: Train, tracker: str, variables: dict[str, str]
) -> None:
    folder, progress = train("tensorboard", tracker, environment=variables)
    assert progress.step == 4
    assert (folder / "model" / "config.json").exists()
    (message,) = failures(progress)
    assert message.startswith(tracker)
    assert tensorboard_steps(folder)["train/gymtrain/reward"] == [1, 2, 3, 4]


@pytest.mark.large
@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_that_hangs_holds_no_run_up(train: Train, tracker: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:  # it never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        variables = {
            "WANDB_MODE": "online",
            "WANDB_API_KEY": "0" * 40,
            "WANDB_BASE_URL": url,
            "MLFLOW_TRACKING_URI": url,
        }
        folder, progress = train("tensorboard", tracker, environment=variables)
    assert progress.step == 4
    assert failures(progress), "its reports are missing, and that is said"
    assert (folder / "model" / "config.json").exists()


def test_a_tracker_that_was_never_started_is_not_ended(tmp_path: Path) -> None:
    """As where the run's servers don't come up: a tracker's own end may begin a run, or wait for its server."""
    called: list[str] = []
    tracker = SimpleNamespace(
        on_train_begin=lambda *_, **__: called.append("begin"), on_train_end=lambda *_, **__: called.append("end")
    )
    callbacks: Any = SimpleNamespace(on_reporter=lambda name, failing: called.append(f"{name}: {failing}"))
    reporters = Reporters([("another", tracker)], callbacks, StopSignal(), {}, tmp_path)
    nothing: Any = SimpleNamespace(global_step=0)
    reporters.end(nothing, nothing, nothing, failed=True)
    assert called == []
    reporters.on_train_begin(nothing, nothing, nothing)
    reporters.end(nothing, nothing, nothing, failed=True)
    assert called[0] == "begin"
    assert "end" in called
