"""The rollout worker, with real HTTP agents; the framework's part is played by the test."""

import asyncio
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gymtrain_api.ledger import LedgerEntry
from gymtrain_api.wiring import DataIndex
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Task, Tasks, ValidationTasks, read_index
from gymtrain_trainer.errors import DataError, DropReason, GroupDroppedError, RolloutsStalledError
from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.progress import Loss, ProgressBoard
from gymtrain_trainer.rollouts import alarms as alarms_module
from gymtrain_trainer.rollouts import http as http_module
from gymtrain_trainer.rollouts import worker as worker_module
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.evaluate import Evaluated
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd, EvaluationRun, EvaluationSettings
from gymtrain_trainer.rollouts.group import Group, GroupEvents, GroupRules, GroupRunner
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.pace import Bounds
from gymtrain_trainer.rollouts.parts import WorkerParts, WorkerSettings
from gymtrain_trainer.rollouts.positions import Positions
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.weights import SyncNumbers, foreign_weights
from tests.unit.trainer.trainer_agent import AgentThread, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import question, write_dataset, write_index
from tests.unit.trainer.trainer_groups import Servers

GENERATIONS = 4


def one_sample_each(rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
    """One sample a rollout, of its sampled tokens alone."""
    samples = tuple(
        TrainingSample(
            token_ids=[5] * rollout.answer.generated,
            mask=[1] * rollout.answer.generated,
            log_probs=[-0.5] * rollout.answer.generated,
            versions=(rollout.version,),
            group_id=task.position,
            rollout=number,
            agent=task.agent,
            reward=rollout.answer.reward,
        )
        for number, rollout in enumerate(rollouts)
    )
    return SampleGroup(task.position, task.agent, tuple(sample.reward for sample in samples), samples)


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def board() -> ProgressBoard:
    return ProgressBoard()


@pytest.fixture
def make_worker(
    served: AgentThread, servers: Servers, board: ProgressBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RolloutWorker]]:
    monkeypatch.setattr(http_module, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(worker_module, "failure_pause", lambda failures: 0.01 if failures else 0.0)
    made: list[RolloutWorker] = []

    def make(rows: int = 50, **changes: Any) -> RolloutWorker:
        other = changes.pop("other_agent", None)  # of every second row
        questions = [question(n, other if n % 2 else None) for n in range(rows)]
        index = read_index(write_index(tmp_path, write_dataset(tmp_path, questions)))
        numbering = SyncNumbers("run", 1)
        numbering.sent("run:1:1")
        staleness = changes.pop("max_staleness", 4)
        rules = GroupRules(
            GENERATIONS, staleness, changes.pop("max_sample_tokens", None), changes.pop("dynamic", False)
        )
        bounds = Bounds(GENERATIONS, changes.pop("groups_per_step", 2), 1, staleness, changes.pop("concurrent", 16))
        announcer = changes.pop("announcer", None)
        ledger = changes.pop("ledger", None)
        settings: dict[str, Any] = {
            "bounds": bounds,
            "stall_timeout_seconds": 60.0,
            "start": Place(changes.pop("start_position", 0)),
        }
        limits, sampling = RolloutLimits(16, 5.0, 2), Sampling(1.0, 8)

        @asynccontextmanager
        async def groups(events: GroupEvents) -> AsyncIterator[GroupRunner]:
            guard = WeightGuard(servers, lambda before, after: foreign_weights(before, after, "run", 1))
            async with AgentSource(limits, sampling, lambda error: events.rollout_failed(str(error))) as source:
                yield GroupRunner(rules, source, guard, ledger, numbering, one_sample_each, events)

        worker = RolloutWorker(
            WorkerSettings(**(settings | changes)),
            Tasks(index, {"adder": served.agent.url, "other": served.agent.url}, seed=0),
            WorkerParts(
                groups=groups,
                report=RolloutReport(board, sampling, masks_truncated=False),
                announcer=announcer,
            ),
        )
        worker.update_model_version(1)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.stop()


def take(worker: RolloutWorker, count: int) -> list[SampleGroup]:
    """Groups, as a trainer takes them, which syncs the weights after each step."""
    groups = []
    for number in range(1, count + 1):
        groups.append(worker.buffer.get(timeout=60))
        if number % (worker._settings.bounds.groups_per_step or 1) == 0:
            worker.use()
            worker.update_model_version(worker._version + 1)
    return groups


def rows_of(groups: Sequence[SampleGroup], worker: RolloutWorker) -> set[int]:
    return {worker._tasks.at(group.id).row["number"] for group in groups}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it didn't happen"
        time.sleep(0.01)


def test_a_group_arrives_whole(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker()
    worker.start()
    groups = take(worker, 4)
    assert [len(group.samples) for group in groups] == [GENERATIONS] * 4
    assert len({group.id for group in groups}) == 4


def test_rollouts_do_not_run_far_ahead_of_the_trainer(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    worker = make_worker()
    worker.start()
    wait_until(lambda: worker.buffer.qsize() == 2)
    time.sleep(0.3)
    assert len(served.agent.requests) == 2 * GENERATIONS
    take(worker, 1)
    wait_until(lambda: len(served.agent.requests) == 3 * GENERATIONS)


def test_a_failed_rollout_is_never_a_sample(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    served.agent.behaviour = lambda row, number: (
        inner_server_died() if row["number"] % 2 else good_answer(row, reward=1.0)
    )
    worker = make_worker()
    worker.start()
    groups = take(worker, 6)
    assert {number % 2 for number in rows_of(groups, worker)} == {0}
    assert {reward for group in groups for reward in group.rewards} == {1.0}
    # Six good groups may be there before the first bad one has failed for good.
    wait_until(lambda: board.snapshot().dropped_groups > 0 and board.snapshot().failed_rollouts > 0)


def test_a_group_that_lost_a_rollout_trains_with_the_others(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    tries: Counter[int] = Counter()

    def behaviour(row: dict[str, Any], number: int) -> Any:
        tries[row["number"]] += 1
        # The first rollout of each row, and its second and last try.
        return inner_server_died() if tries[row["number"]] in (1, GENERATIONS + 1) else good_answer(row)

    served.agent.behaviour = behaviour
    worker = make_worker()
    worker.start()
    groups = take(worker, 3)
    assert [len(group.samples) for group in groups] == [GENERATIONS - 1] * 3
    assert len({group.id for group in groups}) == 3
    assert board.lost().keys() == {Loss("adder", "infrastructure", zeroed=False)}
    assert board.snapshot().dropped_groups == 0


def test_a_group_from_base_weights_is_drawn_again(
    make_worker: Callable[..., RolloutWorker], servers: Servers, board: ProgressBoard
) -> None:
    servers.versions = {"http://vllm": "default"}
    worker = make_worker()
    worker.start()
    wait_until(lambda: worker.dropped.get(DropReason.FOREIGN_WEIGHTS, 0) >= 3)
    assert worker.buffer.qsize() == 0
    servers.versions = {"http://vllm": "run:1:1"}
    assert {0, 1} <= {group.id for group in take(worker, 4)}  # none was skipped for it


def test_failing_rollouts_are_reported_until_one_works(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    served.agent.behaviour = lambda row, number: inner_server_died()
    worker = make_worker()
    worker.start()
    wait_until(lambda: board.snapshot().rollouts_failing_since is not None)
    assert "a server that adder called: gone" in board.snapshot().message
    served.agent.behaviour = lambda row, number: good_answer(row)
    take(worker, 1)
    assert board.snapshot().rollouts_failing_since is None
    assert board.snapshot().message == ""


def test_too_long_without_a_usable_group_fails_the_attempt_with_the_last_error(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    served.agent.behaviour = lambda row, number: inner_server_died()
    worker = make_worker(stall_timeout_seconds=0.3)
    worker.start()
    with pytest.raises(RolloutsStalledError, match=r"stallTimeoutSeconds.*Last error: .*answered 500"):  # noqa: PT012
        for _ in range(100):
            with pytest.raises(queue.Empty):
                worker.buffer.get(timeout=0.05)
            worker.check_health()


def test_a_trainer_that_was_busy_for_long_does_not_count_as_a_stall(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker(stall_timeout_seconds=0.2)
    worker.start()
    wait_until(lambda: worker.buffer.qsize() == 2)
    time.sleep(0.5)  # an optimizer step longer than the stall timeout
    take(worker, 2)
    worker.check_health()


def test_an_error_of_the_data_ends_the_attempt(make_worker: Callable[..., RolloutWorker], tmp_path: Path) -> None:
    worker = make_worker()
    (tmp_path / "train-0.jsonl").write_bytes(b"x" * 100)
    worker.start()
    wait_until(lambda: not worker._thread.is_alive())
    with pytest.raises(DataError, match="changed since it was indexed"):
        worker.check_health()


def test_resuming_starts_at_the_first_group_that_was_not_used(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker(start_position=10)
    worker.start()
    groups = take(worker, 3)  # a step of two, and one of the next step
    used = {group.id for group in groups[:2]}
    place = worker.place()
    assert min(group.id for group in groups) >= 10
    assert set(range(10, place.first_open)) | set(place.done) == used


def test_a_sequence_that_is_too_long_to_train_on_costs_its_row_and_is_counted(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    served.agent.behaviour = lambda row, number: good_answer(row, output=[7] * (9 if row["number"] % 2 else 2))
    worker = make_worker(max_sample_tokens=8)
    worker.start()
    assert {number % 2 for number in rows_of(take(worker, 6), worker)} == {0}
    assert worker.dropped[DropReason.TOO_LONG] > 0
    assert worker.place().first_open > 0


def test_samples_carry_the_version_at_their_groups_start(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    began, go_on = threading.Event(), threading.Event()

    async def slow(row: dict[str, Any], number: int) -> Any:
        began.set()
        await asyncio.to_thread(go_on.wait, 10)
        return good_answer(row)

    served.agent.behaviour = slow
    worker = make_worker()
    worker.start()
    assert began.wait(10)
    worker.update_model_version(2)
    go_on.set()
    assert take(worker, 1)[0].version == 1


def test_stopping_does_not_wait_for_rollouts(make_worker: Callable[..., RolloutWorker], served: AgentThread) -> None:
    async def hang(row: dict[str, Any], number: int) -> Any:
        await asyncio.sleep(6)
        return good_answer(row)

    served.agent.behaviour = hang
    worker = make_worker()
    worker.start()
    wait_until(lambda: len(served.agent.requests) > 0)
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 3


def test_what_was_in_flight_when_the_worker_stopped_is_where_a_later_attempt_begins(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    slow: list[int] = []

    async def first_hangs(row: dict[str, Any], number: int) -> Any:
        if not slow or row["number"] == slow[0]:
            slow.append(row["number"])
            await asyncio.sleep(6)
        return good_answer(row)

    served.agent.behaviour = first_hangs
    worker = make_worker(start_position=10)
    worker.start()
    take(worker, 2)
    hanging = worker.place()
    assert hanging.first_open < 13, "the first of three groups or more"
    worker.stop()
    assert worker.place() == hanging


def test_with_dynamic_sampling_groups_of_equal_rewards_are_left_out_and_counted(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    served.agent.behaviour = lambda row, number: good_answer(row, reward=float(row["number"] % 2 and number % 2))
    worker = make_worker(dynamic=True)
    worker.start()
    groups = take(worker, 6)
    assert all(group.reward_deviation > 0 for group in groups)
    assert worker.dropped[DropReason.EQUAL_REWARDS] > 0
    assert worker.place().first_open > 0
    assert (board.snapshot().rollouts_failing_since, board.snapshot().message) == (None, "")


def test_a_group_that_outlives_many_weight_versions_is_counted_once_as_late_and_trained_on(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    slow: list[int] = []
    go_on = threading.Event()

    async def first_row_is_slow(row: dict[str, Any], number: int) -> Any:
        if not slow or row["number"] == slow[0]:
            slow.append(row["number"])
            await asyncio.to_thread(go_on.wait, 20)
        return good_answer(row)

    served.agent.behaviour = first_row_is_slow
    worker = make_worker(max_staleness=1)
    worker.start()
    take(worker, 20)  # ten weight versions
    assert board.tallies("late_groups") == {"adder": 1}
    go_on.set()
    wait_until(lambda: bool(set(slow) & rows_of(take(worker, 2), worker)))
    assert worker.dropped == {}
    assert worker.place().done == ()


def test_on_policy_each_group_is_sampled_by_the_weights_that_train_on_it(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    worker = make_worker(max_staleness=0)
    worker.start()
    for version in range(1, 8):
        groups = [worker.buffer.get(timeout=60) for _ in range(2)]
        used = worker.use()
        assert {one.staleness for one in used} == {(0,) * GENERATIONS}
        assert {group.version for group in groups} == {version}
        time.sleep(0.02)  # the weight sync: nothing may start meanwhile
        assert worker.in_flight().groups == 0
        worker.update_model_version(version + 1)


def test_a_row_that_is_always_too_slow_does_not_take_the_place_of_others_for_ever() -> None:
    positions = Positions(Place())
    position = positions.draw()
    redraws = 0
    while positions.again_unless_hopeless(position):
        assert positions.draw() == position
        redraws += 1
    assert (redraws, positions.draw()) == (5, 1)


class Announced:
    """An announcer that only notes what it is told."""

    rows_ahead = 3

    def __init__(self) -> None:
        self.upcoming: list[list[int]] = []

    async def __aenter__(self) -> "Announced":
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def drawn(self, upcoming: Sequence[int]) -> None:
        self.upcoming.append(list(upcoming))


def test_each_draw_announces_what_comes_after_it(make_worker: Callable[..., RolloutWorker]) -> None:
    announced = Announced()
    worker = make_worker(announcer=lambda: announced)
    worker.start()
    take(worker, 2)
    assert announced.upcoming[:3] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_the_watchdog_can_see_what_is_in_flight(make_worker: Callable[..., RolloutWorker], served: AgentThread) -> None:
    go_on = threading.Event()

    async def slow(row: dict[str, Any], number: int) -> Any:
        await asyncio.to_thread(go_on.wait, 10)
        return good_answer(row)

    served.agent.behaviour = slow
    worker = make_worker()
    worker.start()
    wait_until(lambda: worker.in_flight().groups == 2)
    assert dict(worker.in_flight().agents) == {"adder": 2}
    go_on.set()
    take(worker, 2)


async def test_a_group_that_is_drawn_again_at_once_is_not_taken_for_the_one_before(
    make_worker: Callable[..., RolloutWorker],
) -> None:
    go_on = asyncio.Event()

    class Runner:
        """Drops the first group, and holds the second one."""

        drawn: ClassVar[list[int]] = []
        running = 0

        def update_model_version(self, model_version: int) -> None:
            return

        async def run(self, task: Task) -> Group:
            self.drawn.append(task.position)
            if len(self.drawn) > 1:
                await go_on.wait()
            raise GroupDroppedError(DropReason.FOREIGN_WEIGHTS, "lost")

        async def evaluate(self, task: Task, version: int) -> Evaluated:
            raise NotImplementedError

    worker, runner = make_worker(start_position=7), Runner()
    worker._start_group(runner)
    await asyncio.sleep(0)  # it is dropped, and its end is not noted yet
    worker._start_group(runner)
    for _ in range(3):
        await asyncio.sleep(0)
    assert runner.drawn == [7, 7]
    assert (worker.in_flight().groups, worker.place().first_open) == (1, 7)
    go_on.set()
    await asyncio.sleep(0.01)
    assert worker.in_flight().groups == 0


def test_of_two_environments_the_one_that_always_fails_is_named_while_the_other_one_trains(
    make_worker: Callable[..., RolloutWorker],
    served: AgentThread,
    board: ProgressBoard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarms_module, "_SECONDS", 0.0)
    broken = threading.Event()
    broken.set()
    served.agent.behaviour = lambda row, number: (
        inner_server_died() if row["number"] % 2 and broken.is_set() else good_answer(row)
    )
    worker = make_worker(other_agent="other")
    worker.start()
    assert {number % 2 for number in rows_of(take(worker, 12), worker)} == {0}
    (alarm,) = board.snapshot().alarms
    assert alarm.reason == "EnvironmentFailing"
    assert "agent other" in alarm.message
    assert "a server that adder called: gone" in alarm.message
    assert "agent adder" not in alarm.message
    broken.clear()
    while board.snapshot().alarms:
        take(worker, GENERATIONS)


class NoLedger:
    """A ledger that knows no call of some rows."""

    def __init__(self, unknown: Callable[[], bool]) -> None:
        self._unknown = unknown

    async def entries(self, digests: Sequence[str], since: float | None = None) -> dict[str, list[LedgerEntry]]:
        if self._unknown():
            raise GroupDroppedError(DropReason.NO_LEDGER_ENTRY, "set spec.gateway.replicas")
        return {digest: [LedgerEntry(versions=["run:1:1"])] for digest in digests}


def test_a_row_whose_calls_nobody_knows_is_drawn_again_up_to_a_limit_and_the_alarm_says_what_to_set(
    make_worker: Callable[..., RolloutWorker], served: AgentThread, board: ProgressBoard
) -> None:
    lost = threading.Event()
    lost.set()
    worker = make_worker(rows=8, groups_per_step=100, ledger=NoLedger(lost.is_set))
    worker.start()
    wait_until(lambda: bool(board.snapshot().alarms))
    drawn = Counter(row["number"] for row in served.agent.requests)
    assert max(drawn.values()) == 6 * GENERATIONS, "once, and five times again"
    (alarm,) = board.snapshot().alarms
    assert alarm.reason == "NoLedgerEntry"
    assert "set spec.gateway.replicas" in alarm.message
    assert board.tallies("rows_given_up")["no_ledger_entry"] >= 1
    assert worker.dropped[DropReason.NO_LEDGER_ENTRY] >= 6
    lost.clear()
    while board.snapshot().alarms:
        worker.buffer.get(timeout=60)


def test_rollouts_that_end_make_room_for_another_group_before_their_own_ends(
    make_worker: Callable[..., RolloutWorker], served: AgentThread
) -> None:
    go_on, seen = threading.Event(), set[int]()

    async def slow(row: dict[str, Any], number: int) -> Any:
        first = row["number"] not in seen  # of its group
        seen.add(row["number"])
        while first and not go_on.is_set():  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0.01)
        return good_answer(row)

    served.agent.behaviour = slow
    worker = make_worker(groups_per_step=16, concurrent=2 * GENERATIONS)
    worker.start()
    wait_until(lambda: worker.in_flight().groups == 5)  # four that wait for one rollout each, and a whole one
    go_on.set()
    take(worker, 5)


def test_the_stall_deadline_counts_from_an_evaluations_end(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker(stall_timeout_seconds=0.2)
    worker._report.last_usable = time.monotonic()
    evaluation = EvaluationRun(ValidationTasks(DataIndex(), {}), EvaluationSettings(1, 1, 60.0), version=2)
    worker.evaluate(evaluation)
    worker.check_health()
    time.sleep(0.4)
    worker.check_health()
    evaluation.end.set_result(EvaluationEnd((), 0.4))
    worker.check_health()
    time.sleep(0.4)
    with pytest.raises(RolloutsStalledError):
        worker.check_health()
