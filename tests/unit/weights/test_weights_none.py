"""No transport: vLLM keeps its weights."""

import asyncio
from typing import Any

from gymtrain_trainer.weights import NoTransport, WeightSync


async def test_every_pod_that_answers_counts_as_current_and_gets_nothing(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transport = WeightSync.over(cluster.settings, NoTransport())
    transport.init_weight_transfer()
    stream = iter([("a", object()), ("b", object())])
    await asyncio.to_thread(transport.send_weights, stream)
    assert next(stream, None) is None
    assert list((await transport.pod_versions()).values()) == ["demo:1:1"]
    assert list(transport.held().pods.values()) == ["demo:1:1"]
    assert set(pod.calls) == {"/health"}
    await asyncio.to_thread(transport.destroy)
