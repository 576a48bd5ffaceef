"""Tells the sandbox broker which tasks are drawn next, so that their sandboxes run before an agent asks for them.

Best effort: one announcement at a time, with a short deadline, in a task of its own. A broker that doesn't answer costs
nothing but warm sandboxes.
"""

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from gymtrain_api.wiring import BROKER_TOKEN_FILE, ENV_BROKER_TOKEN_FILE
from gymtrain_trainer.data.rows import Tasks
from gymtrain_trainer.rollouts.upcoming import Upcoming, of_row

log = logging.getLogger(__name__)

SANDBOXES_AHEAD = 256  # of one announcement; the broker takes as many of them as its spec says
_SECONDS = 5.0
_REMEMBERED = 4096  # rows


class Announcer:
    """Announces; lives in one event loop."""

    def __init__(self, url: str, tasks: Tasks, group_size: int, token_file: Path | None = None) -> None:
        """`url`: of the broker; each task is announced once forevery rollout of its group."""
        self._url = f"{url.rstrip('/')}/v1/announce"
        self._tasks = tasks
        self._group_size = group_size
        self._token_file = token_file or Path(os.environ.get(ENV_BROKER_TOKEN_FILE) or BROKER_TOKEN_FILE)
        self._known: OrderedDict[int, Upcoming | None] = OrderedDict()  # by position: rows are big, and read often
        self._next: list[int] | None = None  # positions to announce
        self._wake = asyncio.Event()
        self._silent = False  # the last announcement failed: it was said once
        self._session: aiohttp.ClientSession | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def rows_ahead(self) -> int:
        """How many positions an announcement looks ahead."""
        return max(1, SANDBOXES_AHEAD // self._group_size)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        await self._session.close()

    def drawn(self, upcoming: Sequence[int]) -> None:
        """A row was drawn; these positions come next. Returns at once; of several calls the last counts."""
        self._next = list(upcoming)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            positions, self._next = self._next or [], None
            try:
                await self._announce(positions)
            except Exception as error:  # nothing here may end the training
                if not self._silent:
                    log.warning("the sandbox broker was not told what comes next: %s: %s", type(error).__name__, error)
                self._silent = True
            else:
                self._silent = False

    async def _announce(self, positions: list[int]) -> None:
        tasks = [
            {"image": sandbox.image, "task": sandbox.task}
            for position in positions
            if (sandbox := self._sandbox(position)) is not None
            for _ in range(self._group_size)
        ]
        if positions and not tasks:
            return  # environments without sandboxes
        assert self._session is not None
        headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
        async with self._session.post(self._url, json={"tasks": tasks}, headers=headers) as response:
            response.raise_for_status()

    def _sandbox(self, position: int) -> Upcoming | None:
        if position not in self._known:
            self._known[position] = of_row(self._tasks.at(position).row)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[position]
