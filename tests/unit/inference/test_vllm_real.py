"""The plugin in a real vLLM on the CPU, with the tiny model: what arrives is what is computed with.

One server for all tests, in order: the last ones end it. Takes about a minute.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec

import aiohttp
import pytest

torch = pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_api.manifest import WeightPart  # noqa: E402
from gymtrain_api.transports import choose  # noqa: E402
from gymtrain_trainer.weights import (  # noqa: E402
    ParityCheck,
    VllmPod,
    WeightParityError,
    WeightSyncError,
    probe_servers,
)
from gymtrain_trainer.weights.pods.client import PodClient  # noqa: E402
from gymtrain_trainer.weights.store.weight_store import AnnouncedManifest  # noqa: E402
from gymtrain_vllm.vllm_internals import release  # noqa: E402
from tests.support.real_gateway import TRAINED, asking  # noqa: E402
from tests.support.real_vllm import Server, serving_tiny_model  # noqa: E402
from tests.unit.inference.vllm_trainer import Trainer, syncing  # noqa: E402

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities; measured 1e-7
LONG = list(range(3, 303))  # more than one block of vLLM's prefix cache
LONG_ANSWER = 1500  # tokens: some seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_tiny_model(tmp_path_factory.mktemp("vllm")) as found:
        yield found


@pytest.fixture(scope="module")
def trainer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with syncing(server, tmp_path_factory.mktemp("trainer"), ParityCheck([[5, 6, 7], LONG], threshold=SAME)) as found:
        yield found


def test_what_the_server_says_of_itself_names_its_release_and_chooses_httpfull(server: Server) -> None:
    (report,) = asyncio.run(probe_servers([VllmPod(f"http://127.0.0.1:{server.port}")]))
    assert report.release is not None
    assert report.release == release()
    assert choose("Auto", [report.offer]).transport == "HTTPFull"


async def test_a_call_waits_while_the_server_is_paused_and_is_answered_after(server: Server) -> None:
    body = {"model": "policy", "prompt": [5, 6], "max_tokens": 2, "ignore_eos": True}
    async with aiohttp.ClientSession() as session:
        client = PodClient(session, VllmPod(f"http://127.0.0.1:{server.port}"))
        await client.pause()
        try:
            assert await client.is_paused()
            call = asyncio.create_task(client.complete(body, 120.0))
            waited, _ = await asyncio.wait({call}, timeout=1.0)
            assert not waited
        finally:
            await client.resume()
        assert (await call)["usage"]["completion_tokens"] == 2
        assert not await client.is_paused()


def test_before_the_first_sync_the_weights_are_random(server: Server, trainer: Trainer) -> None:
    with pytest.raises(WeightParityError):
        server.difference(trainer.expected)


def test_the_first_sync_brings_every_tensor(trainer: Trainer) -> None:
    trainer.sync()  # with the parity check
    assert trainer.transfer.stats.last_parity is not None
    assert trainer.transfer.stats.last_parity < SAME


def test_later_syncs_renew_the_tied_output_head_and_forget_cached_prompts(server: Server, trainer: Trainer) -> None:
    for _ in range(2):
        trainer.change()
        trainer.sync()
        assert server.difference(trainer.expected) < SAME


def test_what_does_not_change_is_not_fetched_again_and_is_computed_with(server: Server, trainer: Trainer) -> None:
    sent = []
    for _ in range(4):
        with torch.no_grad():
            for parameter in trainer.model.model.layers[1].parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        trainer.sync()
        sent.append(trainer.transfer.stats.last_bytes)
        assert server.difference(trainer.expected) < SAME
    whole = sum(parameter.nbytes for parameter in trainer.model.parameters())
    changing = sum(parameter.nbytes for parameter in trainer.model.model.layers[1].parameters())
    assert sent[0] >= whole
    assert changing <= sent[-1] < changing + 10_000  # the file's header too


async def test_the_gateway_serves_what_the_trainer_synced_and_names_its_version(
    server: Server, trainer: Trainer
) -> None:
    async with asking(server, trainer.url) as gateway:
        message = await gateway.chat(**TRAINED)
        assert gateway.entry(message).versions == [trainer.transfer.current_version]
    prompt, output = message["prompt_token_ids"], message["generation_token_ids"]
    assert len(output) == len(message["generation_log_probs"]) > 0
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    scores = logits.log_softmax(-1)
    ours = [float(scores[place, token]) for place, token in enumerate(output)]
    assert max(abs(a - b) for a, b in zip(message["generation_log_probs"], ours, strict=True)) < SAME


async def test_a_call_under_way_at_a_sync_goes_on_with_the_new_weights(server: Server, trainer: Trainer) -> None:
    before = trainer.transfer.current_version
    async with asking(server, trainer.url) as gateway:
        answer = asyncio.create_task(gateway.chat(**TRAINED, ignore_eos=True, max_completion_tokens=LONG_ANSWER))
        until = time.monotonic() + 60
        while await running_calls(server) == 0:
            assert time.monotonic() < until, "the call didn't reach the engine"
            await asyncio.sleep(0.02)
        await asyncio.to_thread(trainer.change)
        await asyncio.to_thread(trainer.sync)
        message = await answer
        assert gateway.entry(message).versions == [before, trainer.transfer.current_version]
    assert len(message["generation_token_ids"]) == LONG_ANSWER


async def running_calls(server: Server) -> float:
    """Calls that the engine generates for."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))


def test_the_readiness_probe_sees_the_weights(server: Server, trainer: Trainer) -> None:
    assert server.ready() == (0, "")
    assert (server.folder / "scratch" / "held-weights").read_text() == trainer.transfer.current_version


def test_damaged_weights_are_refused_and_the_server_goes_on_with_the_old_ones(
    server: Server, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = AnnouncedManifest.add

    def damage(manifest: AnnouncedManifest, part: WeightPart, *, carried: bool = False) -> None:
        if not carried:
            path = trainer.store.find(str(trainer.transfer.numbers.current + 1), part.name)
            assert path is not None
            content = bytearray(path.read_bytes())
            content[part.offset + part.bytes - 1] ^= 1
            path.write_bytes(content)
        add(manifest, part, carried=carried)

    before = trainer.transfer.current_version
    with monkeypatch.context() as patch:
        patch.setattr(AnnouncedManifest, "add", damage)
        with pytest.raises(WeightSyncError, match="blake3"):
            trainer.sync()
    assert server.complete() == 200
    assert asyncio.run(trainer.transfer.pod_versions()) == {f"http://127.0.0.1:{server.port}": before}
    assert server.difference(trainer.expected) < SAME


def test_weights_that_lack_a_tensor_are_refused_and_end_the_server(server: Server, trainer: Trainer) -> None:
    some = ((name, tensor) for name, tensor in trainer.model.named_parameters() if "layers.1.mlp.down" not in name)
    with pytest.raises(WeightSyncError, match=r"doesn't fit the model: no weights arrived for .*layers\.1\.mlp\.down"):
        trainer.transfer.send_weights(some)
    assert server.ended()


def test_a_server_that_came_back_is_brought_to_the_current_weights(server: Server, trainer: Trainer) -> None:
    before = trainer.transfer.stats.repairs  # the one that ended may have got the weights once more
    server.start()
    deadline = time.monotonic() + 60
    while trainer.transfer.stats.repairs == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.difference(trainer.expected) < SAME


def test_a_server_whose_engine_dies_with_a_call_under_way_ends(server: Server) -> None:
    """vLLM itself waits for the call for ever."""
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", server.port)) as asking:
        asking.sendall(b"GET /weight_info HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1)
        os.kill(engine, signal.SIGKILL)
        assert server.ended()
