"""The broker in the process of a test or a benchmark."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.test_utils import TestServer

from gymtrain_broker.backends.backend import PodBackend
from gymtrain_broker.main import BrokerProcess
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.settings import Settings
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.access import Access


@asynccontextmanager
async def serving(config: Settings, cluster: str, http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """A broker that makes pods in the cluster of that URL, up to the end of the block; its own URL."""
    metrics = Metrics()
    backend = PodBackend(ThrottledClient(Access(cluster), metrics), config)
    process = BrokerProcess(config, backend, http, metrics)
    server = TestServer(process.api.app(), host="127.0.0.1")
    await server.start_server()
    process.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        process.controller.end_waits()
        await server.close()
        await process.stop()
        await backend.close()
