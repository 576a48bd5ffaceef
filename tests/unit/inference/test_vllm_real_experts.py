"""A mixture of experts in a real vLLM on the CPU: what the trainer sends is what vLLM computes with.

transformers holds the experts of a layer as two tensors, and so they are sent; checkpoints have three for each expert.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.weights import ParityCheck, WeightParityError
from tests.support.real_vllm import Server, serving_tiny_model
from tests.unit.inference.vllm_trainer import Trainer, syncing

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities
CHECK = ParityCheck([[5, 6, 7], list(range(3, 303))], threshold=SAME)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_tiny_model(tmp_path_factory.mktemp("vllm"), experts=True) as found:
        yield found


@pytest.fixture(scope="module")
def trainer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with syncing(server, tmp_path_factory.mktemp("trainer"), CHECK) as found:
        yield found


def test_each_sync_brings_every_expert(server: Server, trainer: Trainer) -> None:
    with pytest.raises(WeightParityError):
        server.difference(trainer.expected)
    trainer.sync()  # with the parity check
    assert trainer.transfer.stats.last_parity is not None
    for _ in range(2):
        trainer.change()
        trainer.sync()
        assert server.difference(trainer.expected) < SAME
