"""Client of the run's broker: what goes to it, and what comes back.

A broker that restarts or is slow costs time, not sandboxes: what is safe to repeat is repeated for minutes; a request
to create carries a key, so it is safe too.
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from nemo_gym.sandbox import SandboxSpec

import gymtrain_tracing as tracing
from gymtrain_gym.sandbox.errors import BrokerRefusedError, SandboxError, SandboxUnavailableError
from gymtrain_gym.sandbox.http_sessions import Sessions
from gymtrain_gym.sandbox.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0  # with a broker that doesn't answer
FULL_QUEUE_SECONDS = 3600.0  # for a place in the queue, without a create_timeout_s; the broker limits what follows
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

# What upstream's configs set for other providers, and means nothing here.
IGNORED_OPTIONS = frozenset({"platform", "skip_health_check"})
KNOWN_OPTIONS = frozenset({"task", "user"})
TASK_KEYS = ("instance_id", "task", "task_id")  # of a spec's metadata


@dataclass(frozen=True)
class SandboxView:
    """A sandbox as the broker describes it."""

    id: str
    state: str  # Queued, Starting, Running, Closed or Failed
    url: str = field(default="", repr=False)  # of the daemon
    token: str = field(default="", repr=False)
    instance: str = ""  # of the daemon: url and token may be another sandbox's later
    reason: str = ""
    message: str = ""
    pod: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # of every command, as it was asked for
    workdir: str | None = None  # the same
    user: str | None = None  # the same

    @property
    def waiting(self) -> bool:
        """It may still become ready."""
        return self.state in ("Queued", "Starting")

    @property
    def account(self) -> str:
        """State, reason and message in one line."""
        return " ".join(part for part in (self.state, self.reason and f"({self.reason})", self.message) if part)


class BrokerClient:
    """Creates, asks for and closes sandboxes."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self._settings = settings
        self._sessions = sessions
        self._url = settings.broker_url

    async def create(self, spec: SandboxSpec, key: str) -> SandboxView:
        """A running sandbox. Waits in the broker's queue as long as the run's spec allows; `spec.ready_timeout_s`
        counts from the moment that it left the queue. What a failed or cancelled creation leaves is closed.

        Raises:
            SandboxUnavailableError: it was refused, it failed, or a deadline passed.
        """
        body = request_body(spec, key, self._settings.create_timeout_seconds)
        try:
            sandbox = await self._wait_for(spec, body)
            if sandbox.state != "Running" or not sandbox.url:
                raise SandboxUnavailableError(f"no sandbox of {spec.image}: {sandbox.account}")
        except BaseException:
            await self._abandon(spec, body)
            raise
        return sandbox

    async def get(self, id: str, wait: float = 0.0, patience: float = 10.0) -> SandboxView:
        """The sandbox now, or after up to `wait` seconds in which it left queue and start.

        Raises:
            BrokerRefusedError: there is none (404), or the broker didn't answer for `patience` seconds.
        """
        path, end = f"/v1/sandboxes/{id}?wait={wait:g}", time.monotonic() + patience
        return parse(await self._ask("GET", path, wait, end))

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

    async def _wait_for(self, spec: SandboxSpec, body: dict[str, Any]) -> SandboxView:
        limit = self._settings.create_timeout_seconds or float("inf")
        end = time.monotonic() + limit
        started: float | None = None
        sandbox = await self._step(spec, body, None, end)
        while sandbox.waiting:
            now = time.monotonic()
            if sandbox.state == "Starting":
                started = started or now
            if started and spec.ready_timeout_s and now - started > spec.ready_timeout_s:
                raise SandboxUnavailableError(
                    f"sandbox {sandbox.id} of {spec.image} wasn't ready {spec.ready_timeout_s:g} s after it left the "
                    f"queue (sandbox_spec.ready_timeout_s): {sandbox.account}"
                )
            if now > end:
                raise SandboxUnavailableError(
                    f"no sandbox of {spec.image} within {limit:g} s (sandbox.gymtrain.create_timeout_s): "
                    f"{sandbox.account}"
                )
            sandbox = await self._step(spec, body, sandbox, end)
        return sandbox

    async def _step(
        self, spec: SandboxSpec, body: dict[str, Any], sandbox: SandboxView | None, end: float
    ) -> SandboxView:
        """Reads the sandbox; requests one if there is none, or if a restarted broker forgot the queue."""
        wait = max(0.0, min(_WAIT_SECONDS, end - time.monotonic()))
        try:
            if sandbox is not None:
                return await self.get(sandbox.id, wait, PATIENCE_SECONDS)
        except BrokerRefusedError as error:
            if error.status != NOT_FOUND:
                raise SandboxUnavailableError(str(error)) from error
        asked = time.monotonic()
        if not self._settings.create_timeout_seconds:
            end = asked + FULL_QUEUE_SECONDS
        try:
            answer = await self._ask("POST", f"/v1/sandboxes?wait={wait:g}", wait, end, body)
        except _BusyError as error:
            raise SandboxUnavailableError(
                f"no sandbox of {spec.image}: the broker's queue was still full after {time.monotonic() - asked:.0f} "
                "s. Raise spec.sandboxes.maxConcurrent or maxQueued, or run fewer rollouts at once "
                f"(spec.rollout.maxConcurrent): {error}"
            ) from error
        except BrokerRefusedError as error:
            raise SandboxUnavailableError(f"no sandbox of {spec.image}: {error}") from error
        return parse(answer)

    async def _abandon(self, spec: SandboxSpec, body: dict[str, Any]) -> None:
        """Closes what asking for a sandbox may have left. The key finds it, even where no answer came."""
        try:
            async with asyncio.timeout(_ABANDON_SECONDS):
                left = parse(await self._once("POST", f"{self._url}/v1/sandboxes?wait=0", 0.0, body))
                await self.close(left.id)
        except (SandboxError, TimeoutError) as error:
            if not isinstance(error, BrokerRefusedError) or error.status not in REFUSED:
                log.warning("a sandbox of %s may stay until its idle limit: %s", spec.image, error)

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
        headers = {"Authorization": f"Bearer {self._settings.token}", **tracing.headers()}
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


def parse(body: Any) -> SandboxView:
    """The broker's answer.

    Raises:
        SandboxUnavailableError: it is none about a sandbox.
    """
    if not isinstance(body, dict) or not body.get("id") or not body.get("state"):
        raise SandboxUnavailableError(f"the broker's answer isn't a sandbox: {str(body)[:200]}")
    return SandboxView(
        id=str(body["id"]),
        state=str(body["state"]),
        url=str(body.get("url") or "").rstrip("/"),
        token=str(body.get("token") or ""),
        instance=str(body.get("instance") or ""),
        reason=str(body.get("reason") or ""),
        message=str(body.get("message") or ""),
        pod=str(body.get("podName") or ""),
        env=dict(body.get("env") or {}),
        workdir=body.get("workdir") or None,
        user=body.get("user") or None,
    )


def request_body(spec: SandboxSpec, key: str, timeout_seconds: float | None) -> dict[str, Any]:
    """POST /v1/sandboxes for `spec`; `key` makes it safe to repeat.

    Raises:
        SandboxUnavailableError: the spec asks for something that the broker has no word for.
    """
    if not spec.image:
        raise SandboxUnavailableError("the sandbox has no image: give the dataset's row an image_name")
    options = dict(spec.provider_options)
    unknown = sorted(set(options) - IGNORED_OPTIONS - KNOWN_OPTIONS)
    if unknown:
        raise SandboxUnavailableError(
            f"provider_options {', '.join(unknown)} are unknown to the provider gymtrain, which knows "
            f"{', '.join(sorted(KNOWN_OPTIONS))}: leave them out of sandbox_spec"
        )
    resources = spec.resources
    if resources.gpu:
        raise SandboxUnavailableError("sandboxes can't have GPUs: leave resources.gpu out of sandbox_spec")
    wanted = {"cpu": resources.cpu, "memoryMiB": resources.memory_mib, "diskGiB": resources.disk_gib}
    metadata = {str(name): str(value) for name, value in spec.metadata.items()}
    task = options.get("task") or next((metadata[name] for name in TASK_KEYS if metadata.get(name)), "")
    body = {
        "image": str(spec.image).removeprefix("docker://"),
        "task": str(task),
        "key": key,
        "workdir": spec.workdir,
        "env": dict(spec.env),
        "user": None if options.get("user") is None else str(options["user"]),
        "entrypoint": list(spec.entrypoint) if spec.entrypoint else None,
        "resources": {name: value for name, value in wanted.items() if value is not None} or None,
        "ports": list(getattr(spec, "ports", ())),  # newer than nemo-gym 0.4
        "ttlSeconds": spec.ttl_s,
        "timeoutSeconds": timeout_seconds,
        "metadata": metadata,
    }
    return {name: value for name, value in body.items() if value is not None}


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
