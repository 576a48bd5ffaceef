"""Adapters in a real vLLM on the CPU, with the tiny model. One server for all tests; takes about a minute."""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.weights import LoRAFilesystem, ParityCheck, SyncSettings, WeightSync, model_logprobs  # noqa: E402
from tests.support.real_gateway import TRAINED, asking  # noqa: E402
from tests.support.real_vllm import Expected, Server, serving_tiny_model  # noqa: E402

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities
RANK, ALPHA, TARGETS = 4, 8, ("q_proj", "v_proj")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spec: dict[str, Any] = {
        "model": {"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": RANK}},
        "trainer": {"checkpoint": {"size": "1Gi"}},
        "rollout": {"maxStaleness": 1},
    }
    with serving_tiny_model(tmp_path_factory.mktemp("vllm"), **spec) as found:
        yield found


@pytest.fixture(scope="module")
def transport(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeightSync]:
    settings = SyncSettings(
        run="demo",
        attempt=0,
        pods_host="127.0.0.1",
        weights_url="http://x",
        timeout_seconds=120,
        pods_port=server.port,
        repair_seconds=0.5,
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    folder: Path = tmp_path_factory.mktemp("volume") / "adapters"
    found = WeightSync.over(settings, LoRAFilesystem(folder, max_staleness=1, adapter_config=config))
    found.init_weight_transfer()
    yield found
    found.destroy()


def base_model(server: Server) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(server.folder / "model", dtype=torch.float32)


def sync_random_adapter(server: Server, transport: WeightSync) -> Expected:
    """Sends an adapter; what is expected computes with the same one merged."""
    model = base_model(server)
    tensors: dict[str, Any] = {}
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            for target in TARGETS:
                weight = getattr(layer.self_attn, target).weight
                down, up = torch.randn(RANK, weight.shape[1]), torch.randn(weight.shape[0], RANK)
                weight.add_(up @ down * (ALPHA / RANK))
                name = f"base_model.model.model.layers.{number}.self_attn.{target}"
                tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    transport.send_weights(iter(tensors.items()))
    return Expected(ParityCheck([[5, 6, 7], list(range(3, 103))], threshold=1e9), model_logprobs(model))


def test_before_an_adapter_comes_the_pod_is_not_ready(server: Server) -> None:
    assert server.ready() == (1, "waiting for the trainer's first weights")


def test_each_version_is_computed_with_under_its_own_label(server: Server, transport: WeightSync) -> None:
    first = sync_random_adapter(server, transport)
    assert server.ready() == (0, "")
    second = sync_random_adapter(server, transport)
    assert server.difference(first, "demo:0:1") < SAME
    assert server.difference(second, "demo:0:2") < SAME
    assert server.difference(second, "demo:0:1") > SAME


async def test_the_gateway_asks_for_the_newest_version_and_names_it(server: Server, transport: WeightSync) -> None:
    async with asking(server) as gateway:
        assert gateway.entry(await gateway.chat(**TRAINED)).versions == [transport.current_version]


def test_a_version_that_is_too_old_is_forgotten(server: Server, transport: WeightSync) -> None:
    sync_random_adapter(server, transport)
    with pytest.raises(Exception, match="404"):
        server.difference(sync_random_adapter(server, transport), "demo:0:1")


def test_a_server_that_came_back_gets_the_current_adapter(server: Server, transport: WeightSync) -> None:
    expected = sync_random_adapter(server, transport)
    server.stop()
    before = transport.stats.repairs
    server.start()
    deadline = time.monotonic() + 60
    while transport.stats.repairs == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert transport.current_version is not None
    assert server.difference(expected, transport.current_version) < SAME
