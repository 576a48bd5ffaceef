"""Records of rollouts: what was said, how it ended, and the step that it is told with."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.ledger import CallTimes
from gymtrain_api.spec import Records
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, FailureKind, GroupDroppedError
from gymtrain_trainer.framework import TrainedSample
from gymtrain_trainer.monitoring.ended_rollouts import COLUMNS
from gymtrain_trainer.monitoring.recorder import Recorder
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.answer import Answer, Turn, parse_answer
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.evaluate import Evaluated
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd, TaskEnds
from gymtrain_trainer.rollouts.group import Group, GroupRules, GroupRunner, Lost
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.origins import Origin, Rollout
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.summary import RolloutSummary
from gymtrain_trainer.rollouts.transcript import packed, unpacked
from gymtrain_trainer.weights import SyncNumbers, foreign_weights
from tests.unit.trainer.test_trainer_records import label, names_of, rows_of, sample, used
from tests.unit.trainer.trainer_agent import Agent, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import group as sample_group
from tests.unit.trainer.trainer_groups import Heard, Servers

PAGE = (Path(__file__).parents[3] / "docs" / "records.md").read_text()
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "2 + 3?"}], "tools": [{"name": "add"}]}}
ANSWER = Answer(
    [Turn.of([1, 2], [3], [-0.5])],
    1.0,
    "5",
    truncated=False,
    output=({"type": "message", "role": "assistant", "content": "5"},),
    seconds=1.25,
    tries=2,
)


def task(position: int = 7) -> Task:
    return Task(position, "adder", "http://agent", ROW)


def summary(version: int = 3, reward: float = 1.0) -> RolloutSummary:
    made = replace(ANSWER, reward=reward, began=100.0, slot_seconds=0.25, earlier_seconds=3.0)
    times = CallTimes(seconds=0.75, queued=0.125, sampled=0.5, ended=101.0)
    origin = Origin((version,), continues=True, forked=True, constrained=True, times=times)
    return RolloutSummary.of(Rollout(made, (version,), (origin,)), packed(ROW, made.output))


def records(rollouts: str = "All", **fields: Any) -> Records:
    return Records.model_validate({"rollouts": rollouts, "format": "JSONL"} | fields)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    made: list[Recorder] = []

    def begin(settings: Records, step: int = 0) -> Recorder:
        made.append(Recorder(tmp_path, settings, ProgressBoard(), label))
        made[-1].begin(step)
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_a_trained_rollout_is_told_with_its_step(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records())
    group = used(7, sample(7), sample(7, 1, reward=0.0, versions=(2, 3)), version=4)
    recorder.rollouts.usable(task(), Group((summary(), summary(2, 0.0)), group.group, 1.0))
    recorder.step(12, [group], [TrainedSample(7, 0, 0.5, 1.25), TrainedSample(7, 1, -0.5, 0.75)])
    recorder.end()

    first, second = rows_of(tmp_path / "rollouts")
    assert list(first) == list(COLUMNS)
    said = json.loads(first.pop("conversation"))
    assert said == {
        "input": ROW["responses_create_params"]["input"],
        "tools": [{"name": "add"}],
        "output": [{"type": "message", "role": "assistant", "content": "5"}],
    }
    assert first.pop("time") > 1e9
    assert first == {
        "step": 12,
        "outcome": "trained",
        "reason": "",
        "error": "",
        "agent": "adder",
        "group": 7,
        "rollout": 0,
        "reward": 1.0,
        "advantage": 0.5,
        "ratio": 1.25,
        "versions": ["run:2:3"],
        "staleness": 1,
        "turns": 1,
        "tokens": 1,
        "forks": 1,
        "truncated": False,
        "constrained": True,
        "seconds": 1.25,
        "tries": 2,
        "slot_s": 0.25,
        "earlier_s": 3.0,
        "start_s": 0.25,
        "model_s": 0.75,
        "queue_s": 0.125,
        "vllm_s": 0.5,
        "tools_s": 0.0,
        "verify_s": 0.25,
        "calls": '[{"at":0.25,"seconds":0.75,"queue":0.125,"vllm":0.5,"prompt":2,"tokens":1}]',
    }
    assert (second["rollout"], second["advantage"], second["staleness"]) == (1, -0.5, 2)
    assert names_of(tmp_path / "rollouts") == ["step-00000012.jsonl"]
    assert not (tmp_path / "records").exists(), "samples were not asked for"


def test_what_no_step_trains_on_is_told_with_the_next_step_and_once(
    make: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder = make(records())
    dropped = GroupDroppedError(DropReason.EQUAL_REWARDS, "all are 1")
    dropped.rollouts = (summary(), summary())
    recorder.rollouts.dropped(task(3), dropped)
    recorder.rollouts.dropped(task(4), GroupDroppedError(DropReason.FAILED, "the agent is down"))
    recorder.rollouts.lost("adder", Lost(FailureKind.TIMEOUT, "too late", zeroed=True, position=5))
    recorder.step(1, [used()], [])
    recorder.step(2, [used()], [])
    recorder.end()

    rows = rows_of(tmp_path / "rollouts")
    told = [(row["step"], row["outcome"], row["reason"], row["error"], row["group"], row["reward"]) for row in rows]
    assert told == [
        (1, "dropped", "equal_rewards", "all are 1", 3, 1.0),
        (1, "dropped", "equal_rewards", "all are 1", 3, 1.0),
        (1, "dropped", "failed", "the agent is down", 4, None),
        (1, "zeroed", "timeout", "too late", 5, 0.0),
    ]


def test_rollouts_of_an_evaluation_stand_in_a_file_of_their_own(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records())
    ended = (
        Evaluated(1.0, tokens=4, turns=2, seconds=0.5, conversation=packed(ROW, ANSWER.output)),
        Evaluated(failure="timeout", error="too late"),
    )
    recorder.rollouts.usable(task(), Group((summary(),), used().group, 1.0))
    recorder.step(5, [used()], [])
    recorder.evaluated(5, 6, EvaluationEnd((TaskEnds("adder", ended, 2),), 1.0))
    recorder.end()

    assert names_of(tmp_path / "rollouts") == ["evaluation-00000005.jsonl", "step-00000005.jsonl"]
    first, second, _ = rows_of(tmp_path / "rollouts")
    assert (first["outcome"], first["reward"], first["versions"], first["group"]) == ("evaluated", 1.0, ["run:2:6"], 2)
    assert (second["reward"], second["reason"], second["error"], second["rollout"]) == (None, "timeout", "too late", 1)


def test_sampled_tells_so_many_groups_and_as_many_others(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records("Sampled", groupsPerStep=2))
    groups = [used(number) for number in range(8)]
    for one in groups:
        recorder.rollouts.usable(task(one.group.id), Group((summary(), summary()), one.group, 1.0))
    for number in range(5):
        recorder.rollouts.lost("adder", Lost(FailureKind.TIMEOUT, "late", zeroed=False, position=number))
    recorder.step(1, groups, [])
    recorder.evaluated(1, 1, EvaluationEnd(tuple(TaskEnds("adder", (Evaluated(1.0),), n) for n in range(9)), 1.0))
    recorder.end()

    rows = rows_of(tmp_path / "rollouts")
    assert [sum(row["outcome"] == outcome for row in rows) for outcome in ("trained", "lost", "evaluated")] == [4, 2, 2]
    assert len({row["group"] for row in rows if row["outcome"] == "trained"}) == 2


def test_none_keeps_nothing(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records("None"))
    recorder.rollouts.usable(task(), Group((summary(),), used().group, 1.0))
    recorder.rollouts.lost("adder", Lost(FailureKind.TIMEOUT, "late", zeroed=False, position=1))
    recorder.step(1, [used()], [])
    recorder.end()
    assert names_of(tmp_path) == ["rewards.csv"]


def test_an_attempt_that_goes_on_removes_the_rollouts_of_later_steps(
    make: Callable[..., Recorder], tmp_path: Path
) -> None:
    before = make(records())
    for step in (1, 2, 3):
        before.evaluated(step, 1, EvaluationEnd((TaskEnds("adder", (Evaluated(1.0),)),), 1.0))
        before.settle()
    make(records(), step=2)
    assert names_of(tmp_path / "rollouts") == ["evaluation-00000001.jsonl", "evaluation-00000002.jsonl"]


def test_no_token_ids_are_kept_of_an_answer() -> None:
    item = {"type": "message", "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
    other = {"type": "function_call_output", "output": "8"}
    answer = parse_answer({"reward": 1.0, "response": {"output": [item, other]}})
    assert answer.output == ({"type": "message"}, other)
    assert json.loads(unpacked(packed(ROW, answer.output)))["output"] == [{"type": "message"}, other]


async def test_a_dropped_group_says_what_its_rollouts_said() -> None:
    heard = Heard()
    async with Agent() as agent, AgentSource(RolloutLimits(8, 5.0, 1), Sampling(1.0, 8)) as source:
        numbering = SyncNumbers("run", 1)
        guard = WeightGuard(Servers("run:1:1"), lambda before, after: foreign_weights(before, after, "run", 1))
        rules = GroupRules(2, 1, dynamic_sampling=True, records=True)
        runner = GroupRunner(
            rules, source, guard, None, numbering, lambda *_: sample_group(0, rewards=[1.0, 1.0]), heard
        )
        numbering.sent("run:1:1")
        runner.update_model_version(1)
        with pytest.raises(GroupDroppedError) as equal:
            await runner.run(Task(0, "adder", agent.url, ROW))
        agent.behaviour = lambda row, number: good_answer(row) if number % 2 else inner_server_died()
        with pytest.raises(GroupDroppedError) as failed:
            await runner.run(Task(1, "adder", agent.url, ROW))

    assert equal.value.reason is DropReason.EQUAL_REWARDS
    assert [json.loads(unpacked(one.conversation))["output"][0]["role"] for one in equal.value.rollouts] == [
        "assistant",
        "assistant",
    ]
    assert failed.value.reason is DropReason.FAILED
    lost = heard.lost[0]
    assert (lost.position, json.loads(unpacked(lost.conversation))["output"]) == (1, [])


def test_the_page_names_every_column() -> None:
    section = PAGE.split("## Rollouts")[1]
    for name in COLUMNS:
        assert f"`{name}`" in section, name
