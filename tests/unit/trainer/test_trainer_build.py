"""The worker that a run's spec makes."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gymtrain_api.spec import OnFailure
from gymtrain_api.wiring import VerifyRoute
from gymtrain_trainer import open_files
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DataError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.build import make_worker, read_tasks, runner_settings
from gymtrain_trainer.rollouts.guard import Versions
from gymtrain_trainer.rollouts.runner import RunnerSettings
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.trl.settings import training_settings
from gymtrain_trainer.weights import SyncNumbers, SyncStats
from tests.unit.trainer.test_trainer_entry import context
from tests.unit.trainer.trainer_agent import Agent, good_answer
from tests.unit.trainer.trainer_data import question, write_dataset, write_index


class Pods:
    """Weight sync, as the guard sees it."""

    stats = SyncStats()

    async def pod_versions(self) -> Versions:
        return {"http://vllm": "math:2:1"}


def run(tmp_path: Path, *, gateway: str = "", broker: str = "", **parts: Any) -> Context:
    made = context(tmp_path, **parts)
    made.paths.data_index.parent.mkdir(parents=True, exist_ok=True)
    write_index(made.paths.data_index.parent, write_dataset(made.paths.data_index.parent, [question(1)]))
    route = VerifyRoute(model_url="http://model:8000", resources_url="http://resources:8000")
    config = made.run.model_copy(
        update={
            "verifiers": {"adder": route},
            "gateway_url": gateway,
            "gateway_pods_host": "gateways",
            "broker_url": broker,
        }
    )
    return Context(config, made.paths, made.attempt, made.nodes, made.node_rank, made.port)


def settings(made: Context, concurrent: int = 64) -> RunnerSettings:
    return runner_settings(made, training_settings(made.run.spec, None), concurrent, first_number=0)


def worker(made: Context) -> RolloutWorker:
    settings = training_settings(made.run.spec, None)
    return make_worker(
        made, ProgressBoard(), read_tasks(made, seed=1), Pods(), SyncNumbers("math", 2), settings, Place(), 0
    )


def test_an_agents_rows_go_to_its_url(tmp_path: Path) -> None:
    made = run(tmp_path)
    assert read_tasks(made, seed=1).at(0).url == "http://math-gym-adder.lab.svc:8000"


async def test_in_mode_verify_rows_go_to_what_stands_in_for_their_agent(tmp_path: Path) -> None:
    made = run(tmp_path, rollout={"mode": "Verify", "timeoutSeconds": 7, "verifyTimeoutSeconds": 3})
    assert read_tasks(made, seed=1).at(0).url == "http://resources:8000"
    assert type(settings(made).source()).__name__ == "VerifySource"
    limits = settings(made).limits
    assert (limits.timeout_seconds, limits.verify_timeout_seconds) == (7, 3.0)


def test_source_and_groups_know_what_follows_from_a_failure(tmp_path: Path) -> None:
    policy = {"timeout": "Zero", "infrastructure": "DropRollout"}
    made = settings(run(tmp_path, rollout={"onFailure": policy, "maxAttempts": 7}))
    wanted = OnFailure(timeout="Zero", infrastructure="DropRollout", environment="Retry")
    assert (made.limits.on_failure, made.limits.max_attempts) == (wanted, 7)
    assert made.rules.on_failure == wanted


def test_a_row_of_an_agent_that_nothing_stands_in_for_is_refused(tmp_path: Path) -> None:
    made = run(tmp_path, rollout={"mode": "Verify"})
    write_index(made.paths.data_index.parent, write_dataset(made.paths.data_index.parent, [question(1)], agent="other"))
    with pytest.raises(DataError, match="other"):
        read_tasks(made, seed=1)


def test_only_a_run_with_a_gateway_asks_its_ledger(tmp_path: Path) -> None:
    assert settings(run(tmp_path)).ledger_host == ""
    assert settings(run(tmp_path, gateway="http://math-gateway:8000")).ledger_host == "gateways"


async def test_only_a_run_with_sandboxes_announces_its_tasks(tmp_path: Path) -> None:
    assert worker(run(tmp_path))._parts.announcer is None
    make = worker(run(tmp_path, broker="http://math-broker:8000"))._parts.announcer
    assert make is not None
    announcer = make()
    assert announcer._url == "http://math-broker:8000/v1/announce"


@pytest.fixture
def few_files() -> Iterator[None]:
    """The limits of a container runtime that grants many open files, but few of them at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
async def test_more_rollouts_than_the_process_may_open_files_at_first_are_in_flight_at_once(tmp_path: Path) -> None:
    made = run(tmp_path, rollout={"maxConcurrent": 400, "maxAttempts": 1})
    source = settings(made, worker(made)._settings.bounds.max_concurrent).source()
    everybody = asyncio.Event()

    async def together(row: dict[str, Any], number: int) -> web.Response:
        if number == 400:
            everybody.set()
        await everybody.wait()
        return good_answer(row)

    async with Agent(together) as agent, source, asyncio.timeout(60):
        task = Task(0, "adder", agent.url, question(1))
        answers = await asyncio.gather(*(source.run(task) for _ in range(400)))
    assert {answer.reward for answer in answers} == {1.0}


def test_rollouts_that_the_kernel_grants_no_connections_for_are_not_begun_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gymtrain_trainer.open_files.raise_files", lambda: 1024)
    made = run(tmp_path, rollout={"maxConcurrent": 4096})
    rollouts = worker(made)
    assert rollouts._settings.bounds.max_concurrent == 256
    assert "RLIMIT_NOFILE is 1024, but 4096 rollouts at once" in caplog.text
    assert "256 run at once" in caplog.text


@pytest.mark.parametrize(("files", "wanted", "fit"), [(1024, 100, 100), (1024, 4096, 256), (64, 8, 1)])
def test_connections_fit_the_open_files(files: int, wanted: int, fit: int) -> None:
    assert open_files.rollouts_at_once(files, wanted) == fit
    assert (open_files.shortage(files, wanted) is None) == (fit == wanted)
