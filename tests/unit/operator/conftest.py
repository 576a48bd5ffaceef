"""An API server whose answers the test gives."""

from collections.abc import AsyncIterator

import pytest

from tests.support.scripted_api import ScriptedApi


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """The API server."""
    async with ScriptedApi() as started:
        yield started
