"""A real vLLM on the CPU whose workers are in two pods, played by two processes with the launcher of the image.

One server for all tests, in order: the last one ends it.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import aiohttp
import pytest

pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.weights import ParityCheck, VllmPod, WeightParityError
from gymtrain_trainer.weights.pods.client import PodClient
from gymtrain_vllm.server_exit import ExitCode
from tests.support.real_vllm import Server, serving_tiny_model
from tests.unit.inference.vllm_trainer import Trainer, syncing

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Tensor parallel across pods, as on the CPU by default."""
    with serving_tiny_model(tmp_path_factory.mktemp("vllm"), inference={"nodes": 2}) as found:
        yield found


@pytest.fixture(scope="module")
def trainer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with syncing(server, tmp_path_factory.mktemp("trainer"), ParityCheck([[5, 6, 7]], threshold=SAME)) as found:
        yield found


def test_workers_of_all_pods_count(server: Server) -> None:
    async def ask() -> int:
        async with aiohttp.ClientSession() as session:
            return await PodClient(session, VllmPod(f"http://127.0.0.1:{server.port}")).world_size()

    assert asyncio.run(ask()) == 2
    assert server.complete() == 200


def test_workers_of_all_pods_get_the_weights(server: Server, trainer: Trainer) -> None:
    with pytest.raises(WeightParityError):
        server.difference(trainer.expected)
    for _ in range(2):
        trainer.change()
        trainer.sync()
        assert server.difference(trainer.expected) < SAME
    assert server.ready()[0] == 0


def test_a_pod_whose_workers_have_ended_ends(server: Server) -> None:
    (worker,) = server.workers
    children = f"/proc/{worker.pid}/task/{worker.pid}/children"
    with open(children, encoding="utf-8") as text:
        for child in text.read().split():
            os.kill(int(child), signal.SIGKILL)
    assert worker.wait(60) == ExitCode.WORKER_GONE
