"""One rollout: POST /run to an agent, with a deadline for each try, a limit of tries and back-off between them."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from gymtrain_trainer.errors import AgentError, RolloutError
from gymtrain_trainer.rollouts.answer import Answer, parse_answer

_BACKOFF_SECONDS = 1.0  # doubled at each try
_BACKOFF_LIMIT_SECONDS = 30.0
_QUOTED = 400  # characters of an error's body


@dataclass(frozen=True)
class Sampling:
    """How the policy samples; goes into each request."""

    temperature: float
    top_p: float
    max_output_tokens: int


@dataclass(frozen=True)
class RolloutLimits:
    """`spec.rollout`, for one rollout."""

    max_concurrent: int
    timeout_seconds: float
    max_attempts: int


def request_body(row: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
    """The row with the run's sampling settings in its `responses_create_params`."""
    params = dict(row.get("responses_create_params") or {})
    params["temperature"] = sampling.temperature
    params["top_p"] = sampling.top_p
    params["max_output_tokens"] = sampling.max_output_tokens
    return dict(row) | {"responses_create_params": params}


class RolloutClient:
    """Posts rollouts. Cookies are never kept: a request without one starts a session of its own in the Gym servers."""

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
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._limits.timeout_seconds, sock_connect=30.0),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def run(self, url: str, row: Mapping[str, Any]) -> Answer:
        """One rollout of `row` by the agent at `url`.

        Raises:
            RolloutError: the last of `max_attempts` tries failed, or the agent refused the row for good (422).
        """
        body = request_body(row, self._sampling)
        for attempt in range(1, self._limits.max_attempts + 1):
            try:
                async with self._slots:
                    return parse_answer(await self._post(f"{url}/run", body))
            except RolloutError as error:
                self._on_failure(error)
                if attempt == self._limits.max_attempts or isinstance(error, RowRefusedError):
                    raise
            pause = min(_BACKOFF_LIMIT_SECONDS, _BACKOFF_SECONDS * 2 ** (attempt - 1))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries
        raise AssertionError("unreachable: max_attempts is at least 1")

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        """The JSON of the answer; raises AgentError."""
        assert self._session is not None
        try:
            async with self._session.post(url, json=body) as response:
                if response.status == 200:
                    return await response.json(content_type=None)
                text = " ".join((await response.text(errors="replace")).split())
                kind = RowRefusedError if response.status == 422 else AgentError
                raise kind(f"{url} answered {response.status}: {text[:_QUOTED]}")
        except TimeoutError:
            raise AgentError(f"{url} didn't answer within {self._limits.timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise AgentError(f"{url}: {type(error).__name__}: {error}"[:_QUOTED]) from error
        except ValueError as error:
            raise AgentError(f"{url} answered no JSON: {error}"[:_QUOTED]) from error


class RowRefusedError(AgentError):
    """The row doesn't fit the agent's schema: trying again can't help."""
