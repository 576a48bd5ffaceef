"""The parts of gymtrain that serve metrics, at work without a cluster.

What they count, they count at work: reconciles, requests to an API server, model calls, sandboxes. What a cluster or a
GPU would have to do, such as the numbers of a step or a pod that fails, is put where the parts themselves put it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

import aiohttp

from gymtrain_api.wiring import TrainerProgress
from gymtrain_kube.errors import KubeError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.health import Health, served
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.run_metrics import RUNS
from gymtrain_trainer.framework import StepMeasures
from gymtrain_trainer.monitoring.evaluation_scores import ALL, EvaluationRow
from gymtrain_trainer.progress import InFlight, ProgressBoard
from gymtrain_trainer.serve import HttpServer, make_app
from tests.support.apiserver import free_port
from tests.support.reconciler_bench import KEY, Bench
from tests.support.scripted_api import ScriptedApi
from tests.support.world import World
from tests.unit.broker.conftest import Bench as Broker
from tests.unit.gateway.conftest import Bench as Gateway

NAMESPACE, RUN = "team", "sums"
_PAUSE_SECONDS = 0.2


@asynccontextmanager
async def operator() -> AsyncIterator[int]:
    """Port of an operator that reconciles a run, is throttled by its API server, and knows of two runs more."""
    failed = World("failed").to_training()
    failed.trainer_ends(78, "the spec asks for what can't be")
    failed.settle()
    assert failed.status.state == "Failed"
    _tell_of(World(RUN, sandboxes={}).to_training(step=3))
    _tell_of(failed)
    metrics.LEADER.set(1)
    metrics.RESYNC_TIME.set_to_current_time()
    port = free_port()
    async with aiohttp.ClientSession() as session, ScriptedApi() as api:
        api.answer({"message": "too many requests"}, status=429)
        bench, kube = Bench(session), KubeClient(api.access)
        bench.add_run()

        async def work() -> None:
            await bench.reconcile()
            with suppress(KubeError):
                await kube.get(kinds.RUN, *KEY)
            metrics.RECONCILE_ERRORS.labels("UnreachableError").inc()

        try:
            with served(Health(), port):
                async with _repeated(work):
                    yield port
        finally:
            await kube.close()
            metrics.LEADER.set(0)
            for key in (KEY, (NAMESPACE, RUN), (NAMESPACE, "failed")):
                RUNS.forget(key)


def _tell_of(world: World) -> None:
    """Shows a run as the operator does once it has written its status."""
    RUNS.show(replace(world.observe().run, namespace=NAMESPACE), world.status)


@contextmanager
def trainer() -> Iterator[int]:
    """Port of a trainer that has trained some steps, not all of them well."""
    board = ProgressBoard(
        TrainerProgress(
            phase="training",
            step=3,
            max_steps=10,
            reward=0.5,
            tokens_per_second=800.0,
            validation_reward=0.4,
            validation_step=2,
            parity=0.001,
            rollouts_failing_since=time.time() - 5,
        )
    )
    measures = StepMeasures(
        loss=0.1,
        grad_norm=1.0,
        learning_rate=1e-6,
        kl=0.01,
        ratio=1.0,
        entropy=2.0,
        rollout_wait_s=6.0,
        weight_sync_s=1.0,
    )
    # Those that step_report.py adds.
    board.set_numbers(
        measures.known() | {"reward_std": 0.2, "staleness": 1.0, "staleness_max": 2.0, "step_seconds": 10.0}
    )
    board.set_evaluation({ALL: _evaluated().numbers()})
    board.in_flight = lambda: InFlight(groups=4, oldest_seconds=12.0)
    board.set_alarm("KLHigh", "the policy runs away")
    board.count("rollouts", 64)
    board.count("failed_rollouts", 2)
    board.tally("dropped_groups", "stale")
    board.lose("sums_agent", "timeout", zeroed=False)
    port = free_port()
    server = HttpServer(lambda: make_app(board), port)
    server.start()
    try:
        yield port
    finally:
        server.stop()


def _evaluated() -> EvaluationRow:
    return EvaluationRow(
        step=2, version="sums:1:2", environment=ALL, tasks=8, rollouts=16, failed=0, zeroed=0, failures="", reward=0.4,
        reward_low=0.3, reward_high=0.5, pass_1=0.4, pass_k=0.6, k=2, tokens=80.0, truncated=0.0, seconds=4.0, time=0.0,
    )  # fmt: skip


@asynccontextmanager
async def gateway(bench: Gateway) -> AsyncIterator[int]:
    """Port of a gateway that answers calls, refuses one, and has lost a vLLM pod once."""
    call = {"model": "policy", "logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}

    async def work() -> None:
        path = "/v1/chat/completions"
        await bench.post(path, {**call, "messages": [{"role": "user", "content": "1 + 1?"}]})
        # As long as the context of the vLLM pod.
        await bench.post(path, {**call, "messages": [{"role": "user", "content": "1" * 5000}]})

    bench.gateway.metrics.retries.labels("connection").inc()
    async with _repeated(work):
        yield int(bench.url.rpartition(":")[2])


@asynccontextmanager
async def broker(bench: Broker) -> AsyncIterator[int]:
    """Port of a broker that hands sandboxes out, with an image that can't be pulled."""

    async def work() -> None:
        _, found = await bench.ask()
        await bench.close(found["id"])

    _, held = await bench.ask()
    bench.metrics.wasted.labels("LookAhead").inc()
    async with _repeated(work):
        yield int(bench.url.rpartition(":")[2])
    await bench.close(held["id"])


@asynccontextmanager
async def _repeated(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Does something again and again until the end of the block. An error of it is raised at the end."""

    async def repeat() -> None:
        while True:
            await work()
            await asyncio.sleep(_PAUSE_SECONDS)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
