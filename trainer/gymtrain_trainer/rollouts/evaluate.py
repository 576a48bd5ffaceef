"""One rollout of an evaluation: a task, sampled by one weight version, and its reward.

```
rollout ──► origin of each turn (ledger) ──► Evaluated: a reward, or why there is none
   │ fails for good   │ other or unknown weights, another temperature, cut off by vLLM
   ▼                  ▼
 failed           made again, _DRAWS times in all
```
Nothing of it is trained on. A failure is never a silent reward: it counts as 0 only where spec.rollout.onFailure says
so, as in training.
"""

import time
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, FailureKind, GroupDroppedError, RolloutError
from gymtrain_trainer.rollouts.answer import Answer, UnscoredError
from gymtrain_trainer.rollouts.failures import action_for
from gymtrain_trainer.rollouts.hops import Hops
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout, digests_of, rollouts_of
from gymtrain_trainer.rollouts.source import RolloutLimits, RolloutSource, Sampling
from gymtrain_trainer.rollouts.traces import told, traced
from gymtrain_trainer.rollouts.transcript import packed
from gymtrain_trainer.weights import SyncNumbers

_DRAWS = 3

DEADLINE = "deadline"  # it hadn't ended when the evaluation had to
WEIGHTS = "weights"  # sampled by other weights than the evaluation's, or unknown ones, each time
TEMPERATURE = "temperature"  # sampled at another temperature than the evaluation's, each time
FAILURES = (*map(str, FailureKind), WEIGHTS, TEMPERATURE, DEADLINE)


@dataclass(frozen=True)
class EvaluationRules:
    """Of the rollouts of a run's evaluations. Can be pickled.

    Attributes:
        limits, sampling: as for training; the temperature of `sampling` is what requests carry (api sampling.marked).
        temperature: that the ledger has of their calls; None where it is the run's.
        records: rollouts are recorded.
    """

    limits: RolloutLimits
    sampling: Sampling
    temperature: float | None = None
    records: bool = False


@dataclass(frozen=True)
class Evaluated:
    """How one rollout of an evaluation ended.

    Attributes:
        reward: None where it failed.
        zeroed: it failed, and spec.rollout.onFailure makes that a reward of 0.
        failure: one of FAILURES; empty where the environment gave the reward.
        error: what failed.
        tokens: that the model sampled; None where they aren't known.
        truncated: it hit the token limit.
        seconds: that its last try took.
        hops: where they went; None where that isn't known.
        conversation: packed (transcript.py), as far as it is known, where the run keeps records of rollouts.
    """

    reward: float | None = None
    zeroed: bool = False
    failure: str = ""
    error: str = ""
    tokens: int | None = None
    truncated: bool = False
    turns: int = 0
    seconds: float = 0.0
    hops: Hops | None = None
    conversation: bytes = b""


class Evaluator:
    """Makes the rollouts of evaluations; lives in one event loop."""

    def __init__(
        self, rules: EvaluationRules, source: RolloutSource, ledger: Ledger | None, numbering: SyncNumbers
    ) -> None:
        """`ledger`: None where the run has no gateway; then nobody knows which weights sampled a rollout."""
        self._rules = rules
        self._source = source
        self._ledger = ledger
        self._numbering = numbering

    async def run(self, task: Task, version: int) -> Evaluated:
        """One rollout, by the weights of that model version."""
        ended = Evaluated(failure=WEIGHTS)
        for _ in range(_DRAWS):
            began = time.monotonic()
            try:
                with traced(task, self._numbering, version, "evaluation") as span:
                    answer = told(span, await self._source.run(task))
            except RolloutError as error:
                return self._failed(task, error)
            try:
                rollout = await self._origin(answer, version, began)
            except GroupDroppedError as error:
                kind = TEMPERATURE if error.reason is DropReason.OTHER_TEMPERATURE else WEIGHTS
                ended = Evaluated(failure=kind, error=str(error))
                continue
            if rollout.aborted:
                ended = Evaluated(failure=FailureKind.INFRASTRUCTURE, error="vLLM cut a model call off")
                continue
            return Evaluated(answer.reward, truncated=rollout.truncated, **self._told(task, rollout))
        return ended

    def _told(self, task: Task, rollout: Rollout | None) -> dict[str, Any]:
        """What is known of any rollout with an answer."""
        answer = rollout.answer if rollout is not None else None
        conversation = packed(task.row, answer.output if answer is not None else ()) if self._rules.records else b""
        if rollout is None or answer is None:
            return {"conversation": conversation}
        return {
            "tokens": answer.generated,
            "turns": len(answer.turns),
            "seconds": answer.seconds,
            "hops": rollout.hops(each=self._rules.records),
            "conversation": conversation,
        }

    def _failed(self, task: Task, error: RolloutError) -> Evaluated:
        zeroed = action_for(self._rules.limits.on_failure, error.kind) == "Zero"
        answer = error.answer if isinstance(error, UnscoredError) else None
        return Evaluated(
            reward=0.0 if zeroed else None,
            zeroed=zeroed,
            failure=error.kind,
            error=str(error),
            truncated=answer is not None and answer.truncated,
            **self._told(task, Rollout(answer, ()) if answer is not None else None),
        )

    async def _origin(self, answer: Answer, version: int, began: float) -> Rollout:
        if self._ledger is None:
            return Rollout(answer, (version,))
        entries = await self._ledger.entries(list(digests_of([answer])), began)
        (rollout,) = rollouts_of([answer], entries, self._numbering, version, self._rules.temperature)
        if rollout.versions != (version,):
            newer = self._numbering.label(rollout.versions[-1])
            raise GroupDroppedError(DropReason.STALE, f"a model call was sampled by {newer} already")
        return rollout
