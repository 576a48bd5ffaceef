"""A real vLLM that sends its own spans, as our launcher starts it where a run is traced."""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from tests.support.otlp import Receiver, receiving
from tests.support.real_vllm import Server, serving_tiny_model

pytestmark = pytest.mark.torch

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def generate(server: Server, headers: dict[str, str]) -> None:
    """One call as the gateway makes it."""
    sampling: dict[str, Any] = {"max_tokens": 4, "logprobs": 0, "detokenize": False}
    body = {"model": "policy", "token_ids": [5, 6, 7], "sampling_params": sampling, "stream": False}
    url = f"http://127.0.0.1:{server.port}/inference/v1/generate"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def test_a_call_in_a_trace_is_a_span_below_the_gateways_and_any_other_is_none(
    receiver: Receiver, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the operator gives a vLLM pod, see manifests/tracing.py.
    for name, value in {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "gymtrain-inference",
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=run-inference-0",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }.items():
        monkeypatch.setenv(name, value)
    serving = serving_tiny_model(tmp_path_factory.mktemp("vllm"))
    server = await asyncio.to_thread(serving.__enter__)
    try:
        await generate(server, {})
        await generate(server, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
        await generate(server, {"traceparent": f"00-{TRACE}-{PARENT}-03"})  # sampled, with a random id, as ours are
        (span,) = await receiver.until(lambda spans: bool(spans), 60)
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)
    assert (span.service, span.name, span.trace, span.parent) == ("gymtrain-inference", "llm_request", TRACE, PARENT)
    assert span.resource["k8s.pod.name"] == "run-inference-0"
    assert "gen_ai.latency.time_in_queue" in span.attributes
    assert len(receiver.spans) == 1
