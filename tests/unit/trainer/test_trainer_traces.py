"""The spans of a rollout in the trainer, and what they tell of it."""

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gymtrain_tracing as tracing
from gymtrain_tracing import otel
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import GroupDroppedError
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts import http as http_module
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.evaluate import EvaluationRules, Evaluator
from gymtrain_trainer.rollouts.group import GroupRules, GroupRunner
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.weights import SyncNumbers, foreign_weights
from tests.unit.trainer.trainer_agent import Agent, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import group as sample_group
from tests.unit.trainer.trainer_data import question
from tests.unit.trainer.trainer_groups import Heard, Servers

LIMITS = RolloutLimits(8, 5.0, 2)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where spans go; everything is sampled."""
    monkeypatch.setattr(http_module, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    exporter = InMemorySpanExporter()
    before = tracing.use(otel.to_exporter(exporter))
    yield exporter
    tracing.stop()
    tracing.use(before)


def numbers() -> SyncNumbers:
    numbering = SyncNumbers("run", 1)
    numbering.sent("run:1:1")
    return numbering


async def group(agent: Agent, size: int = 2) -> None:
    """One group of the agent's."""

    def any_samples(rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
        return sample_group(task.position)

    async with AgentSource(LIMITS, Sampling(1.0, 8)) as source:
        guard = WeightGuard(Servers(), lambda before, after: foreign_weights(before, after, "run", 1))
        runner = GroupRunner(GroupRules(size, 1), source, guard, None, numbers(), any_samples, Heard())
        runner.update_model_version(1)
        await runner.run(Task(4, "adder", agent.url, question(1)))


def ended(memory: InMemorySpanExporter) -> list[ReadableSpan]:
    tracing.stop()
    return list(memory.get_finished_spans())


async def test_each_rollout_of_a_group_is_a_trace(memory: InMemorySpanExporter) -> None:
    async with Agent() as agent:
        await group(agent)
    roots = [span for span in ended(memory) if span.parent is None]
    assert [span.name for span in roots] == ["rollout"] * 2
    assert len({span.context.trace_id for span in roots if span.context}) == 2
    attributes = dict(roots[0].attributes or {})
    assert attributes["gymtrain.agent"] == "adder"
    assert attributes["gymtrain.group"] == 4
    assert attributes["gymtrain.weight_version"] == "run:1:1"
    assert (attributes["gymtrain.reward"], attributes["gymtrain.tries"], attributes["gymtrain.turns"]) == (1.0, 1, 1)


async def test_a_try_that_failed_is_a_span_and_the_agent_is_told_the_trace(memory: InMemorySpanExporter) -> None:
    async with Agent(lambda row, number: inner_server_died() if number == 1 else good_answer(row)) as agent:
        await group(agent, 1)
        heard = agent.traceparents
    spans = ended(memory)
    tries = [span for span in spans if span.name == "try"]
    assert [(dict(one.attributes or {})["gymtrain.try"], one.status.is_ok) for one in tries] == [(1, False), (2, True)]
    assert [span.name for span in spans if span.name == "pause before the next try"] == ["pause before the next try"]
    posts = [span.context for span in spans if span.name == "POST /run"]
    assert [one.split("-")[2] for one in heard] == [f"{one.span_id:016x}" for one in posts if one]
    (root,) = (span for span in spans if span.parent is None)
    assert root.status.status_code.name == "UNSET", "the rollout came to its end"


async def test_a_rollout_that_is_lost_is_an_error(memory: InMemorySpanExporter) -> None:
    async with Agent(lambda row, number: inner_server_died()) as agent:
        with pytest.raises(GroupDroppedError):
            await group(agent, 1)
    (root,) = (span for span in ended(memory) if span.parent is None)
    assert not root.status.is_ok
    assert "a server that adder called" in (root.status.description or "")


async def test_rollouts_of_evaluations_are_told_apart(memory: InMemorySpanExporter) -> None:
    rules = EvaluationRules(LIMITS, Sampling(1.0, 8), None, False)
    async with Agent() as agent, AgentSource(LIMITS, Sampling(1.0, 8)) as source:
        await Evaluator(rules, source, None, numbers()).run(Task(0, "adder", agent.url, question(1)), 1)
    (root,) = (span for span in ended(memory) if span.parent is None)
    assert dict(root.attributes or {})["gymtrain.purpose"] == "evaluation"


async def test_without_tracing_no_header_is_sent() -> None:
    async with Agent() as agent:
        await group(agent, 1)
    assert agent.traceparents == [""]
