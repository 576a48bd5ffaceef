"""The root span of a rollout: what it is of, and what came of it (docs/tracing.md)."""

from contextlib import AbstractContextManager

import gymtrain_tracing as tracing
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.rollouts.answer import Answer
from gymtrain_trainer.weights import SyncNumbers


def traced(task: Task, numbering: SyncNumbers, version: int, purpose: str) -> AbstractContextManager[tracing.Span]:
    """A rollout of the task while the block runs.

    Args:
        task: it is of.
        numbering: of the weights' versions.
        version: the trainer's when it began. Its calls may be sampled by newer ones: the gateway's spans have those.
        purpose: training or evaluation.
    """
    if not tracing.on():
        return tracing.root("rollout")
    return tracing.root(
        "rollout",
        {
            "gymtrain.agent": task.agent,
            "gymtrain.group": task.position,
            "gymtrain.weight_version": numbering.label(version),
            "gymtrain.purpose": purpose,
        },
    )


def told(span: tracing.Span, answer: Answer) -> Answer:
    """The answer, of which the span tells."""
    span.set(
        {
            "gymtrain.reward": answer.reward,
            "gymtrain.scored": answer.scored,
            "gymtrain.truncated": answer.truncated,
            "gymtrain.tries": answer.tries,
            "gymtrain.turns": len(answer.turns),
            "gen_ai.usage.output_tokens": answer.generated,
        }
    )
    return answer
