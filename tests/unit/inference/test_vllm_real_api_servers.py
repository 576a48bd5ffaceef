"""A real vLLM on the CPU whose API server is two processes, with the launcher of the image.

One server for all tests, in order: the last one ends it.
"""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.weights import ParityCheck
from gymtrain_vllm import vllm_internals
from gymtrain_vllm.ready import held_version
from tests.support.real_vllm import Server, serving_tiny_model
from tests.unit.inference.vllm_trainer import Trainer, syncing

if not vllm_internals.engine_knows_its_weights():
    pytest.skip("this vLLM keeps the version of its weights in the API server", allow_module_level=True)

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities
_LOOKS = 20  # at 20 connections, each of which gets one of the processes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = {"args": ["--max-model-len=128", "--api-server-count=2"]}
    with serving_tiny_model(tmp_path_factory.mktemp("vllm"), inference=arguments) as found:
        yield found


@pytest.fixture(scope="module")
def trainer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with syncing(server, tmp_path_factory.mktemp("trainer"), ParityCheck([[5, 6, 7]], threshold=SAME)) as found:
        yield found


def test_each_process_knows_what_the_trainer_brought_into_one(server: Server, trainer: Trainer) -> None:
    assert len(server.api_servers()) == 2
    for _ in range(2):
        trainer.change()
        trainer.sync()
        said = {held_version(server.port, "") for _ in range(_LOOKS)}
        assert len(said) == 1, said
        assert server.difference(trainer.expected) < SAME
    assert server.ready()[0] == 0


def test_a_process_that_ended_ends_the_server(server: Server) -> None:
    os.kill(server.api_servers()[0], signal.SIGKILL)
    assert server.ended()
