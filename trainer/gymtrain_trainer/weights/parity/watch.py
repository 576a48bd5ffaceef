"""When parity is checked, and what follows from it: a number, an alarm, or the end of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.weights.errors import PodRefusedError, PodUnreachableError, WeightSyncError
from gymtrain_trainer.weights.parity.check import (
    Completion,
    ParityCheck,
    ParityCompletion,
    allowed,
    completions_of,
    judge,
)
from gymtrain_trainer.weights.pods.client import PodClient

logger = logging.getLogger(__name__)

_ALARM_SHARE = 0.5  # of the threshold, from which the difference is an alarm
_MOST_UNANSWERED = 3  # checks in a row: it may be the check that the pods don't survive

type Runner = Callable[[Coroutine[Any, Any, dict[str, list[ParityCompletion]]]], dict[str, list[ParityCompletion]]]


@dataclass(frozen=True)
class ParityResult:
    """One check of all pods."""

    difference: float  # the largest mean |difference| of a pod
    threshold: float
    pods: int

    @property
    def alarming(self) -> bool:
        """Whether it is near the threshold."""
        return self.difference > self.threshold * _ALARM_SHARE


class ParityWatch:
    """Counts syncs and checks those that are due."""

    def __init__(
        self,
        check: ParityCheck,
        *,
        every_syncs: int = 0,
        dtype: str | None = None,
        on_result: Callable[[ParityResult], None] | None = None,
    ) -> None:
        """`every_syncs`: 0 checks after the first sync only. `dtype`: of the weights in vLLM."""
        self.check = check
        self.dtype = dtype
        self._every = every_syncs
        self._on_result = on_result or (lambda _: None)
        self._syncs = 0
        self._unanswered = 0  # checks, since the last one that a pod answered
        self._sampled: dict[str, list[ParityCompletion]] = {}  # by pod, not compared yet

    def due(self) -> bool:
        """Counts one sync; whether it is to be checked. A check that no pod answered is due again."""
        self._syncs += 1
        return self._syncs == 1 or self._unanswered > 0 or (self._every > 0 and (self._syncs - 1) % self._every == 0)

    def ask(self, clients: Mapping[str, PodClient], model: str, run: Runner, seconds: float) -> None:
        """Lets the pods sample, for `compare`. Nothing where no pod lives to answer: one that died holds nothing to
        compare, and gets the weights again.

        Args:
            clients: of the pods to ask, by URL.
            model: name to ask for.
            run: runs a coroutine in the clients' event loop.
            seconds: deadline of a pod's answers.

        Raises:
            WeightSyncError: a pod refuses, or none has answered several times in a row.
        """
        self._sampled = run(_collect(clients, self.check, model, seconds))
        if self._sampled:
            self._unanswered = 0
            return
        self._unanswered += 1
        if self._unanswered >= _MOST_UNANSWERED:
            raise WeightSyncError(f"no vLLM pod answered the parity check, {self._unanswered} times in a row")
        logger.warning("no vLLM pod answered the parity check: it is repeated after the next sync")

    @property
    def to_compare(self) -> list[Completion]:
        """What the pods sampled, each completion once: pods with the same weights sample the same."""
        return list(dict.fromkeys(one.completion for sampled in self._sampled.values() for one in sampled))

    def compare(self, log_probs: Sequence[Sequence[float]]) -> float:
        """The largest difference of a pod from the log-probabilities that the trainer computes of `to_compare`.

        Raises:
            WeightParityError: vLLM computes something else than the trainer.
        """
        computed = dict(zip(self.to_compare, log_probs, strict=True))
        all_sampled, self._sampled = self._sampled, {}
        worst = 0.0
        for pod, sampled in all_sampled.items():
            difference = judge(pod, sampled, computed, self.check, self.dtype)
            logger.info("parity with %s: mean difference %.2g", pod, difference)
            worst = max(worst, difference)
        result = ParityResult(worst, allowed(self.check, self.dtype), len(all_sampled))
        if result.alarming:
            logger.warning(
                "parity: mean difference %.3g, %.0f %% of what is allowed", worst, 100 * worst / result.threshold
            )
        self._on_result(result)
        return worst


async def _collect(
    clients: Mapping[str, PodClient], check: ParityCheck, model: str, seconds: float
) -> dict[str, list[ParityCompletion]]:
    """What each pod sampled, of those that live."""
    found = await asyncio.gather(*(_ask(client, check, seconds, model) for client in clients.values()))
    return {pod: completions for pod, completions in zip(clients, found, strict=True) if completions is not None}


async def _ask(client: PodClient, check: ParityCheck, seconds: float, model: str) -> list[ParityCompletion] | None:
    try:
        try:
            return await completions_of(client, check, seconds, model)
        except PodRefusedError as error:
            await client.health()  # with a dead engine the server still answers for a while
            raise WeightSyncError(f"parity check after a sync: {error}") from error
    except PodUnreachableError as error:
        logger.warning("no parity check: %s", error)
        return None
