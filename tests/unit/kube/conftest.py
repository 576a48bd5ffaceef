"""A client, and an API server whose answers the test gives."""

from collections.abc import AsyncIterator

import pytest

from gymtrain_kube.client import RestClient
from tests.support.scripted_api import ScriptedApi


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """The API server."""
    async with ScriptedApi() as started:
        yield started


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[RestClient]:
    """A client of it."""
    made = RestClient(api.access, manager="tests")
    yield made
    await made.close()
