"""Sources of rollouts over HTTP: each call has a deadline, each rollout a limit of tries with back-off between them."""

import abc
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import aiohttp

import gymtrain_tracing as tracing
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import AgentError, RolloutError, RowRefusedError
from gymtrain_trainer.rollouts.answer import Answer, UnscoredError
from gymtrain_trainer.rollouts.failures import Call, action_for, kind_of_answer, kind_of_silence
from gymtrain_trainer.rollouts.inner_error import ERROR_BYTES, clipped, inner_error
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling

_BACKOFF_SECONDS = 1.0  # doubled at each try
_BACKOFF_LIMIT_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
# The answer of a rollout of 128k tokens with their log-probabilities takes some 10 MiB.
_ANSWER_BYTES = 64 << 20

type Cookies = dict[str, str]


class NoRouteError(AgentError):
    """The server has no such route."""


class HttpSource(abc.ABC):
    """Base of the sources. Cookies are never kept: a request without one starts a session of its own in Gym."""

    def __init__(
        self, limits: RolloutLimits, sampling: Sampling, on_failure: Callable[[RolloutError], None] | None = None
    ) -> None:
        """`on_failure` hears of each failed try."""
        self._limits = limits
        self._sampling = sampling
        self._on_failure = on_failure or (lambda error: None)
        self._slots = asyncio.Semaphore(limits.max_concurrent)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # As many as there are slots: nobody ever waits for one in the pool, which would eat deadlines.
            connector=aiohttp.TCPConnector(limit=self._limits.max_concurrent, keepalive_timeout=15.0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def run(self, task: Task) -> Answer:
        """One rollout.

        Raises:
            RolloutError: the last of `max_attempts` tries failed, or one in a way that isn't retried
                (`limits.on_failure`).
            RowRefusedError: a server refused the row for good (422).
        """
        entered, waited = time.monotonic(), 0.0
        for attempt in range(1, self._limits.max_attempts + 1):
            wanted = time.monotonic()
            try:
                async with self._slot():
                    began = time.monotonic()
                    waited += began - wanted
                    try:
                        with tracing.span("try", {"gymtrain.try": attempt}):
                            answer = await self._once(task)
                    except UnscoredError as error:
                        error.answer = _timed(error.answer, attempt, entered, began, waited)
                        raise
                    return _timed(answer, attempt, entered, began, waited)
            except RolloutError as error:
                self._on_failure(error)
                again = action_for(self._limits.on_failure, error.kind) == "Retry"
                if attempt == self._limits.max_attempts or not again or isinstance(error, RowRefusedError):
                    raise
            pause = min(_BACKOFF_LIMIT_SECONDS, _BACKOFF_SECONDS * 2 ** (attempt - 1))
            with tracing.span("pause before the next try"):
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries
        raise AssertionError("unreachable: max_attempts is at least 1")

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """One of `max_concurrent`, while the block runs."""
        with tracing.span("wait for a slot"):
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    @abc.abstractmethod
    async def _once(self, task: Task) -> Answer:
        """One try; raises RolloutError."""

    async def _post(
        self, call: Call, base: str, body: Mapping[str, Any], seconds: float, cookies: Cookies | None = None
    ) -> tuple[Any, Cookies]:
        """The JSON of the answer of a server at `base`, and the cookies that it set; raises AgentError."""
        with tracing.sent(f"POST {call.value}", {"url.full": base + call.value}):
            return await self._posted(call, base, body, seconds, cookies)

    async def _posted(
        self, call: Call, base: str, body: Mapping[str, Any], seconds: float, cookies: Cookies | None
    ) -> tuple[Any, Cookies]:
        assert self._session is not None
        url = base + call.value
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.post(
                url, json=body, timeout=timeout, cookies=cookies, headers=tracing.headers()
            ) as response:
                if response.status == 200:
                    found = {name: morsel.value for name, morsel in response.cookies.items()}
                    return json.loads(await _whole_body(response, url)), found
                inner = inner_error((await _start_of_body(response, ERROR_BYTES)).decode(errors="replace"))
                refused = {404: NoRouteError, 405: NoRouteError, 422: RowRefusedError}.get(response.status, AgentError)
                raise refused(
                    f"{url} answered {response.status}: {inner}", kind_of_answer(call, response.status, inner)
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise AgentError(f"{url}: no connection within {_CONNECT_SECONDS:g} s") from error
        except TimeoutError:
            raise AgentError(f"{url} didn't answer within {seconds:g} s", kind_of_silence(call)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise AgentError(clipped(f"{url}: {type(error).__name__}: {error}")) from error
        except ValueError as error:
            raise AgentError(clipped(f"{url} answered no JSON: {error}")) from error


def _timed(answer: Answer, attempt: int, entered: float, began: float, waited: float) -> Answer:
    """The answer of a try that has just ended: `entered`, when the first was wanted, and `waited` for slots since."""
    return replace(
        answer,
        seconds=time.monotonic() - began,
        tries=attempt,
        began=began,
        slot_seconds=waited,
        earlier_seconds=began - entered - waited,
    )


async def _whole_body(response: aiohttp.ClientResponse, url: str) -> bytes:
    """Raises AgentError where there is more of it than an answer can have."""
    body = await _start_of_body(response, _ANSWER_BYTES + 1)
    if len(body) > _ANSWER_BYTES:
        raise AgentError(f"{url} answered more than {_ANSWER_BYTES >> 20} MiB")
    return body


async def _start_of_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """As much of it as `limit` bytes."""
    body = bytearray()
    while len(body) < limit and (part := await response.content.read(limit - len(body))):
        body += part
    return bytes(body)
