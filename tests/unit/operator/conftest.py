"""An API server whose answers the test gives, and a reconciler on a fake cluster."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.reconciler_bench import Bench
from tests.support.scripted_api import ScriptedApi


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """The API server."""
    async with ScriptedApi() as started:
        yield started


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """What the operator asks pods with."""
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def bench(session: aiohttp.ClientSession) -> Bench:
    """The reconciler, without a run yet."""
    return Bench(session)
