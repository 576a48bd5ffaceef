"""Client of the run's broker. A broker that restarts or is slow costs time, not sandboxes: what is safe to repeat is
repeated for minutes; a request to create carries a key, so it is safe too."""

import asyncio
import logging
import random
import time
from typing import Any

import aiohttp
from nemo_gym.sandbox import SandboxSpec

from gymtrain_gym.sandbox import lease as leases
from gymtrain_gym.sandbox.errors import BrokerRefusedError, SandboxError, SandboxUnavailableError
from gymtrain_gym.sandbox.lease import Lease
from gymtrain_gym.sandbox.http_sessions import Sessions
from gymtrain_gym.sandbox.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0  # with a broker that doesn't answer
_CLOSE_SECONDS = 30.0  # of all tries to close
_ABANDON_SECONDS = 15.0
_WAIT_SECONDS = 25.0  # of one question that waits for news
_ANSWER_SECONDS = 15.0  # beyond that
_PAUSE_SECONDS = 0.2  # doubled at each try
_PAUSE_LIMIT_SECONDS = 10.0
_QUOTED = 400  # characters of an error's body
_AGAIN = frozenset({429, 500, 502, 503})
NOT_FOUND, TIMED_OUT = 404, 504
REFUSED = range(400, 429)  # what was asked for can't be had: nothing was made


class Broker:
    """Creates, asks for and closes sandboxes."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self._settings = settings
        self._sessions = sessions
        self._url = settings.broker_url

    async def create(self, spec: SandboxSpec, key: str) -> Lease:
        """A running sandbox. Waits in the broker's queue as long as the run's spec allows; `spec.ready_timeout_s`
        counts from the moment that it left the queue. What a failed or cancelled creation leaves is closed.

        Raises:
            SandboxUnavailableError: it was refused, it failed, or a deadline passed.
        """
        body = leases.request_body(spec, key, self._settings.create_timeout_seconds)
        try:
            lease = await self._wait_for(spec, body)
            if lease.state != "Running" or not lease.url:
                raise SandboxUnavailableError(f"no sandbox of {spec.image}: {lease.account}")
        except BaseException:
            await self._abandon(spec, body)
            raise
        return lease

    async def get(self, id: str, wait: float = 0.0, patience: float = 10.0) -> Lease:
        """The sandbox now, or after up to `wait` seconds in which it left queue and start.

        Raises:
            BrokerRefusedError: there is none (404), or the broker didn't answer for `patience` seconds.
        """
        path, end = f"/v1/sandboxes/{id}?wait={wait:g}", time.monotonic() + patience
        return leases.parse(await self._ask("GET", path, wait, end))

    async def close(self, id: str) -> None:
        """Ends the sandbox, or its wait in the queue.

        Raises:
            BrokerRefusedError: the broker couldn't be told; the sandbox ends by its idle limit or TTL.
        """
        try:
            await self._ask("DELETE", f"/v1/sandboxes/{id}", 0.0, time.monotonic() + _CLOSE_SECONDS)
        except BrokerRefusedError as error:
            if error.status != NOT_FOUND:
                raise

    async def _wait_for(self, spec: SandboxSpec, body: dict[str, Any]) -> Lease:
        limit = self._settings.create_timeout_seconds or float("inf")
        end = time.monotonic() + limit
        started: float | None = None
        lease = await self._step(spec, body, None, end)
        while lease.waiting:
            now = time.monotonic()
            if lease.state == "Starting":
                started = started or now
            if started and spec.ready_timeout_s and now - started > spec.ready_timeout_s:
                raise SandboxUnavailableError(
                    f"sandbox {lease.id} of {spec.image} wasn't ready {spec.ready_timeout_s:g} s after it left the "
                    f"queue (sandbox_spec.ready_timeout_s): {lease.account}"
                )
            if now > end:
                raise SandboxUnavailableError(
                    f"no sandbox of {spec.image} within {limit:g} s (sandbox.gymtrain.create_timeout_s): "
                    f"{lease.account}"
                )
            lease = await self._step(spec, body, lease, end)
        return lease

    async def _step(self, spec: SandboxSpec, body: dict[str, Any], lease: Lease | None, end: float) -> Lease:
        """News of the sandbox; asks for one where there is none, or where a restarted broker forgot the queue."""
        wait = max(0.0, min(_WAIT_SECONDS, end - time.monotonic()))
        try:
            if lease is not None:
                return await self.get(lease.id, wait, PATIENCE_SECONDS)
        except BrokerRefusedError as error:
            if error.status != NOT_FOUND:
                raise SandboxUnavailableError(str(error)) from error
        try:
            answer = await self._ask("POST", f"/v1/sandboxes?wait={wait:g}", wait, end, body)
        except BrokerRefusedError as error:
            raise SandboxUnavailableError(f"no sandbox of {spec.image}: {error}") from error
        return leases.parse(answer)

    async def _abandon(self, spec: SandboxSpec, body: dict[str, Any]) -> None:
        """Closes what asking for a sandbox may have left. The key finds it, even where no answer came."""
        try:
            async with asyncio.timeout(_ABANDON_SECONDS):
                left = leases.parse(await self._once("POST", f"{self._url}/v1/sandboxes?wait=0", 0.0, body))
                await self.close(left.id)
        except (SandboxError, TimeoutError) as error:
            if not isinstance(error, BrokerRefusedError) or error.status not in REFUSED:
                log.warning("a sandbox of %s may be left to its idle limit: %s", spec.image, error)

    async def _ask(
        self, method: str, path: str, wait: float, end: float = float("inf"), body: dict[str, Any] | None = None
    ) -> Any:
        """JSON of the answer. Repeated while the broker is away or too busy: a full queue is waited for until `end`,
        everything else for PATIENCE_SECONDS at most."""
        url, pause = self._url + path, _PAUSE_SECONDS
        patience = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self._once(method, url, wait, body)
            except BrokerRefusedError as error:
                if error.status and error.status not in _AGAIN:
                    raise
                if isinstance(error, _BusyError):  # it is there: only the queue is full
                    patience, pause = time.monotonic() + PATIENCE_SECONDS, error.retry_after
                if time.monotonic() + pause > min(end, patience):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the tries of many agents
            pause = min(_PAUSE_LIMIT_SECONDS, 2 * pause)

    async def _once(self, method: str, url: str, wait: float, body: dict[str, Any] | None) -> Any:
        timeout = aiohttp.ClientTimeout(total=wait + _ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {self._settings.token}"}
        try:
            async with (
                self._sessions.use() as session,
                session.request(method, url, json=body, headers=headers, timeout=timeout) as response,
            ):
                text = await response.text(errors="replace")
                if response.status == TIMED_OUT and '"state"' in text:
                    return await response.json(content_type=None)  # the sandbox, Failed: its deadline passed
                if response.status < 300:
                    return await response.json(content_type=None) if text else None
                message = f"the broker answered {response.status} to {method} {url}: {' '.join(text.split())[:_QUOTED]}"
                if response.status == 429:
                    raise _BusyError(message, _seconds(response.headers.get("Retry-After")))
                raise BrokerRefusedError(message, response.status)
        except TimeoutError:
            raise BrokerRefusedError(f"the broker didn't answer {method} {url} in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokerRefusedError(f"the broker can't be reached at {url}: {error}") from error
        except ValueError as error:
            raise BrokerRefusedError(f"the broker answered no JSON to {method} {url}: {error}") from error


class _BusyError(BrokerRefusedError):
    """The queue is full."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, 429)
        self.retry_after = retry_after


def _seconds(header: str | None) -> float:
    """Retry-After, within reason."""
    try:
        return min(_PAUSE_LIMIT_SECONDS, max(_PAUSE_SECONDS, float(header or 1.0)))
    except ValueError:
        return 1.0
