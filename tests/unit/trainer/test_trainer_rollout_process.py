"""Groups in a process of their own: a real one, with real HTTP agents and a gateway's ledger."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gymtrain_api.ledger import LedgerEntry, token_digest
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, GroupDroppedError, WorkerDiedError
from gymtrain_trainer.rollouts.group import GroupRules
from gymtrain_trainer.rollouts.guard import Look
from gymtrain_trainer.rollouts.process import client
from gymtrain_trainer.rollouts.process.client import RolloutProcess
from gymtrain_trainer.rollouts.runner import RunnerSettings
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.weights import SyncNumbers
from tests.unit.trainer.trainer_agent import Agent, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import question
from tests.unit.trainer.trainer_gateway import GATEWAYS, Gateway, at_its_place, entry
from tests.unit.trainer.trainer_groups import Heard, Servers

DIGEST = token_digest([1, 2, 3], [7, 8])  # of good_answer's turn


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # pytest's own, by pyproject.toml


def settings(ledger_host: str = "", size: int = 2) -> RunnerSettings:
    return RunnerSettings(
        run="run",
        attempt=1,
        first_number=0,
        rules=GroupRules(size, 1),
        limits=RolloutLimits(64, 5.0, 1),
        sampling=Sampling(1.0, 8),
        ledger_host=ledger_host,
    )


class Scene:
    """A process with what it meets."""

    def __init__(self, process: RolloutProcess, agent: Agent, heard: Heard, numbering: SyncNumbers) -> None:
        self.process = process
        self.agent = agent
        self.heard = heard
        self.numbering = numbering

    def sync(self, label: str) -> None:
        """Weights go out."""
        self.numbering.sent(label)
        self.process.update_model_version(self.numbering.model_versions)

    def task(self, number: int = 1) -> Task:
        return Task(4, "adder", self.agent.url, question(number))

    async def settled(self) -> None:
        """The last account of what runs is there."""
        await until(lambda: not self.process.running)


@asynccontextmanager
async def scene(servers: Any = None, made: RunnerSettings | None = None) -> AsyncIterator[Scene]:
    numbering, heard = SyncNumbers("run", 1), Heard()
    process = RolloutProcess(made or settings(), numbering, servers or Servers())
    process.launch()
    async with Agent() as agent, process.open(heard), asyncio.timeout(30):
        found = Scene(process, agent, heard, numbering)
        found.sync("run:1:1")
        yield found


async def until(condition: Callable[[], bool]) -> None:
    """Waits for it, 10 s at most."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it didn't happen")


def pid(process: RolloutProcess) -> int:
    assert process._process is not None
    return process._process.pid


async def test_a_group_comes_back_with_its_samples_and_what_people_are_told() -> None:
    async with scene() as made:
        group = await made.process.run(made.task())
        await made.settled()
    assert [list(sample.token_ids) for sample in group.samples.samples] == [[1, 2, 3, 7, 8]] * 2
    assert [(one.text, one.reward, one.tokens, one.turns) for one in group.rollouts] == [("8", 1.0, 2, 1)] * 2
    assert {row["number"] for row in made.agent.requests} == {1}


async def test_labels_of_the_ledger_become_the_trainers_versions() -> None:
    gateway = Gateway({DIGEST: entry("run:1:9")})
    async with at_its_place(gateway), scene(made=settings(GATEWAYS)) as made:
        made.sync("run:1:9")
        assert {one.version for one in (await made.process.run(made.task())).rollouts} == {2}
        gateway.entries[DIGEST] = LedgerEntry(versions=["run:0:9"])
        with pytest.raises(GroupDroppedError) as dropped:
            await made.process.run(made.task())
    assert dropped.value.reason is DropReason.FOREIGN_WEIGHTS


async def test_without_a_gateway_the_versions_since_the_groups_start_count() -> None:
    async with scene() as made:
        first = iter([True])

        async def slow(row: dict[str, Any], number: int) -> web.Response:
            if row["number"] == 1 and next(first, False):
                made.sync("run:1:2")
                await made.process.run(made.task(2))  # it begins once the other process has heard of the version
            return good_answer(row)

        made.agent.behaviour = slow
        group = await made.process.run(made.task())
    assert {sample.versions for sample in group.samples.samples} == {(1, 2, 3)}


async def test_failures_are_heard_and_a_group_that_lost_too_many_is_dropped_with_its_reason() -> None:
    async with scene() as made:
        made.agent.behaviour = lambda row, number: inner_server_died()
        with pytest.raises(GroupDroppedError, match=r"failed; the last: .*gone") as dropped:
            await made.process.run(made.task())
        await made.settled()
    assert dropped.value.reason is DropReason.FAILED
    assert "gone" in made.heard.tries[0]
    assert made.heard.agents == {"adder"}


async def test_the_guard_asks_the_trainers_process_what_the_servers_hold() -> None:
    async with scene(Servers("default")) as made:
        with pytest.raises(GroupDroppedError, match="default") as dropped:
            await made.process.run(made.task())
    assert dropped.value.reason is DropReason.FOREIGN_WEIGHTS


async def test_rollouts_that_run_are_counted_from_the_moment_they_are_asked_for() -> None:
    go_on, at_once = asyncio.Event(), iter(range(2))
    async with scene(made=settings(size=8)) as made:

        async def held(row: dict[str, Any], number: int) -> web.Response:
            if next(at_once, None) is None:
                await go_on.wait()
            return good_answer(row)

        made.agent.behaviour = held
        group = asyncio.create_task(made.process.run(made.task()))
        await asyncio.sleep(0)
        assert made.process.running == 8
        await until(lambda: made.process.running == 6)
        assert made.heard.running == 6
        go_on.set()
        await group
        await made.settled()


async def test_groups_run_beside_each_other() -> None:
    everybody = asyncio.Event()
    async with scene() as made:

        async def together(row: dict[str, Any], number: int) -> web.Response:
            if len(made.agent.requests) == 40:
                everybody.set()
            await everybody.wait()
            return good_answer(row)

        made.agent.behaviour = together
        groups = await asyncio.gather(*(made.process.run(made.task(number)) for number in range(20)))
    assert len(groups) == 20


async def test_a_process_that_is_killed_ends_its_groups_and_says_what_may_be_lacking() -> None:
    async with scene() as made:

        async def killed(row: dict[str, Any], number: int) -> web.Response:
            os.kill(pid(made.process), signal.SIGKILL)
            return good_answer(row)

        made.agent.behaviour = killed
        for _ in range(2):  # nor does another one begin
            with pytest.raises(WorkerDiedError, match=r"SIGKILL.*memory"):
                await made.process.run(made.task())
        assert made.process._connection is not None
        watched = asyncio.get_running_loop().remove_reader(made.process._connection.fileno())
        assert not watched, "a closed socket is always readable: the loop would spin"


async def test_a_process_that_can_send_nothing_any_more_ends_and_so_do_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from gymtrain_trainer.rollouts.process import __main__ as process
        from multiprocessing.connection import Connection
        def send(self, message):
            raise MemoryError
        Connection.send = send
        process.main()
    """
    (tmp_path / "sends_nothing.py").write_text(textwrap.dedent(code))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(client, "_MODULE", "sends_nothing")
    async with scene() as made:
        with pytest.raises(WorkerDiedError, match="ended with code 1"):
            await made.process.run(made.task())


async def test_an_error_that_should_not_be_ends_the_groups() -> None:
    async with scene() as made:
        with pytest.raises(WorkerDiedError, match="TypeError"):
            await made.process.run(Task(4, "adder", None, question(1)))  # type: ignore[arg-type]


async def test_a_weight_sync_that_cannot_be_asked_ends_the_groups() -> None:
    class Broken:
        async def look(self) -> Look:
            raise RuntimeError("no session")

    async with scene(Broken()) as made:
        with pytest.raises(WorkerDiedError, match="no session"):
            await made.process.run(made.task())


async def test_it_ends_with_its_socket_while_groups_run() -> None:
    async with scene() as made:

        async def never(row: dict[str, Any], number: int) -> web.Response:
            await asyncio.sleep(3600)
            return good_answer(row)

        made.agent.behaviour = never
        group = asyncio.create_task(made.process.run(made.task()))
        await until(lambda: len(made.agent.requests) == 2)
        group.cancel()
        process = made.process._process
    assert process is not None
    assert process.returncode == 0


def test_it_does_not_outlive_a_trainer_that_is_killed() -> None:
    code = f"""
        import pickle, time
        from gymtrain_trainer.rollouts.process.client import RolloutProcess
        from gymtrain_trainer.weights import SyncNumbers
        process = RolloutProcess(pickle.loads({pickle.dumps(settings())!r}), SyncNumbers("run", 1), None)
        process.launch()
        print(process._process.pid, flush=True)
        time.sleep(60)
    """
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        rollouts = int(trainer.stdout.readline())
    trainer.kill()
    trainer.wait()
    end = time.monotonic() + 20
    while _runs(rollouts):
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.05)


def _runs(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
