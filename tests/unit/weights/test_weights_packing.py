"""Messages cut as vLLM's receiver cuts them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights.transports.nccl.packing import Packer, describe, messages  # noqa: E402

pytestmark = pytest.mark.torch


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(4, 4).t(),  # not contiguous
        "c": torch.tensor(2.5),
        "d": torch.arange(3, dtype=torch.int8),
        "e": torch.zeros(0, 3),
        "f": torch.randn(7),  # behind an odd number of bytes
    }


def sent(limit: int, dtype: str | None) -> list[Any]:
    packer = Packer(describe(iter(tensors().items()), dtype), torch.device("cpu"), limit)
    found: list[Any] = []
    packer.send(iter(tensors().items()), lambda message: found.append(message.clone()))
    assert sum(message.numel() for message in found) == packer.total_bytes
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", None])
@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
def test_the_receiver_finds_every_tensor(limit: int, dtype: str | None) -> None:
    """By vLLM's rule: a message holds tensors until their sum is above the limit."""
    given, found = tensors(), sent(limit, dtype)
    for message, infos in zip(found, messages(describe(iter(given.items()), dtype), limit), strict=True):
        for part, info in zip(message.split([info.size for info in infos]), infos, strict=True):
            expected = given[info.name].to(getattr(torch, info.dtype))
            assert torch.equal(part.clone().view(expected.dtype).view(info.shape), expected)


def test_a_message_ends_after_the_tensor_that_brings_it_above_the_limit() -> None:
    infos = describe(iter(tensors().items()), None)
    assert [[info.name for info in message] for message in messages(infos, 100)] == [["a", "b"], ["c", "d", "e", "f"]]


def test_buffers_are_used_in_turn() -> None:
    packer = Packer(describe(iter(tensors().items()), None), torch.device("cpu"), 1)
    addresses: list[int] = []
    packer.send(iter(tensors().items()), lambda message: addresses.append(message.data_ptr()))
    assert len(set(addresses)) == 2
