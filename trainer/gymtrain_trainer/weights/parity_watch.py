"""When parity is checked, and what follows from it: a number, an alarm, or the end of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gymtrain_trainer.weights.errors import PodError, WeightSyncError
from gymtrain_trainer.weights.parity import (
    LogProbs,
    ParityCheck,
    Sample,
    ShardedModelError,
    allowed,
    judge,
    sample,
)
from gymtrain_trainer.weights.pod_client import PodClient

logger = logging.getLogger(__name__)

_ALARM_SHARE = 0.5  # of the threshold, from which the difference is an alarm

type Runner = Callable[[Coroutine[Any, Any, dict[str, list[Sample]]]], dict[str, list[Sample]]]


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

    def due(self) -> bool:
        """Counts one sync; whether it is to be checked."""
        self._syncs += 1
        return self._syncs == 1 or (self._every > 0 and (self._syncs - 1) % self._every == 0)

    def run(
        self,
        clients: Mapping[str, PodClient],
        model: str,
        run: Runner,
        seconds: float,
        fallback: Callable[[object], LogProbs] | None,
    ) -> float | None:
        """The largest difference of a pod; None where the model is sharded and there is no fallback.

        Args:
            clients: of the pods to ask, by URL.
            model: name to ask for.
            run: runs a coroutine in the clients' event loop.
            seconds: deadline of each completion.
            fallback: computes the log-probabilities where this process holds only its share of the model.

        Raises:
            WeightSyncError: a pod doesn't answer.
            WeightParityError: vLLM computes something else than the trainer.
        """
        samples = run(_collect(clients, self.check, model, seconds))
        check, worst = self.check, 0.0
        for pod, found in samples.items():
            try:
                difference = judge(pod, found, check, self.dtype)
            except ShardedModelError as sharded:
                if fallback is None:
                    logger.warning("no parity check: the model is sharded, and no process can compute with it alone")
                    return None
                check = replace(check, logprobs=fallback(sharded.config))
                difference = judge(pod, found, check, self.dtype)
            logger.info("parity with %s: mean difference %.2g", pod, difference)
            worst = max(worst, difference)
        result = ParityResult(worst, allowed(check, self.dtype), len(samples))
        if result.alarming:
            logger.warning(
                "parity: mean difference %.3g, %.0f %% of what is allowed", worst, 100 * worst / result.threshold
            )
        self._on_result(result)
        return worst


async def _collect(
    clients: Mapping[str, PodClient], check: ParityCheck, model: str, seconds: float
) -> dict[str, list[Sample]]:
    try:
        found = await asyncio.gather(*(sample(client, check, seconds, model) for client in clients.values()))
    except PodError as error:
        raise WeightSyncError(f"parity check after a sync: {error}") from error
    return dict(zip(clients, found, strict=True))
