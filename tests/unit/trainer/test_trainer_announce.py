"""What the trainer tells the sandbox broker of the tasks to come."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Tasks, read_index
from gymtrain_trainer.rollouts import announce as announce_module
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.positions import Positions
from gymtrain_trainer.rollouts.upcoming import Upcoming, of_row
from tests.support.fake_sandboxes import FakeSandboxes
from tests.unit.trainer.trainer_data import question, write_dataset, write_index

AGENTS = {"adder": "http://adder:8000"}


def tasks_of(folder: Path, rows: list[dict[str, Any]]) -> Tasks:
    return Tasks(read_index(write_index(folder, write_dataset(folder, rows))), AGENTS, seed=1)


def swe_rows(count: int) -> list[dict[str, Any]]:
    return [
        question(n) | {"instance_id": f"lib__Repo-{n}", "image_name": f"gymtrain/swe-{n}:dev"} for n in range(count)
    ]


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[FakeSandboxes]:
    async with FakeSandboxes(tmp_path) as fake:
        yield fake


async def until_announced(broker: FakeSandboxes) -> None:
    await broker.until(lambda: bool(broker.announced))


async def test_the_next_tasks_are_announced_in_order_once_for_every_rollout(
    tmp_path: Path, broker: FakeSandboxes
) -> None:
    tasks = tasks_of(tmp_path / "data", swe_rows(8))
    async with Announcer(broker.url, tasks, group_size=2, token_file=broker.token_file) as announcer:
        announcer.drawn([3, 4])
        await until_announced(broker)
    expected = [tasks.at(position).row for position in (3, 3, 4, 4)]
    assert broker.announced == [[{"image": row["image_name"], "task": row["instance_id"].lower()} for row in expected]]


async def test_of_many_draws_at_once_the_last_is_announced(tmp_path: Path, broker: FakeSandboxes) -> None:
    tasks = tasks_of(tmp_path / "data", swe_rows(8))
    async with Announcer(broker.url, tasks, 1, broker.token_file) as announcer:
        for position in range(100):
            announcer.drawn([position])
        await until_announced(broker)
        await asyncio.sleep(0.05)
    assert [batch[-1]["task"] for batch in broker.announced] == [tasks.at(99).row["instance_id"].lower()]


async def test_environments_without_sandboxes_are_not_announced(tmp_path: Path, broker: FakeSandboxes) -> None:
    tasks = tasks_of(tmp_path / "data", [question(1)])
    async with Announcer(broker.url, tasks, 1, broker.token_file) as announcer:
        announcer.drawn([0, 1, 2])
        await asyncio.sleep(0.1)
    assert broker.requests == []


async def test_a_broker_that_fails_is_told_the_next_time(
    tmp_path: Path, broker: FakeSandboxes, caplog: pytest.LogCaptureFixture
) -> None:
    broker.answer_first = [500, 500]
    tasks = tasks_of(tmp_path / "data", swe_rows(3))
    async with Announcer(broker.url, tasks, 1, broker.token_file) as announcer:
        for position in range(3):
            announcer.drawn([position])
            expected = position + 1
            await broker.until(lambda: len(broker.requests) >= expected)  # noqa: B023 - awaited here
        await until_announced(broker)
    assert len([record for record in caplog.records if "was not told" in record.message]) == 1


async def test_a_broker_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    monkeypatch.setattr(announce_module, "_SECONDS", 60.0)
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    token = tmp_path / "token"
    token.write_text("t")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(10):
        async with Announcer(url, tasks_of(tmp_path / "data", swe_rows(1)), 1, token) as announcer:
            announcer.drawn([0])
            await reached.wait()
    server.close()


def test_what_was_put_back_comes_before_what_was_never_drawn() -> None:
    positions = Positions(Place(10))
    first = positions.draw()
    positions.draw()
    positions.again(first)
    assert positions.upcoming(3) == [10, 12, 13]
    assert [positions.draw() for _ in range(3)] == [10, 12, 13]


def test_images_of_rows_that_name_none_follow_swe_benchs_names() -> None:
    verified = {"instance_id": "django__django-11099", "subset": "verified"}
    gym = {"instance_id": "Project-MONAI__MONAI-1", "subset": "gym"}
    assert of_row(verified) == Upcoming(
        "docker.io/swebench/sweb.eval.x86_64.django_1776_django-11099:latest", "django__django-11099"
    )
    assert of_row(gym) == Upcoming(
        "docker.io/xingyaoww/sweb.eval.x86_64.project-monai_s_monai-1:latest", "project-monai__monai-1"
    )
    assert of_row({"question": "1 + 1"}) is None
