"""The provider that NeMo Gym finds by the entry point `gymtrain`."""

import asyncio
import logging
import shlex
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from nemo_gym.sandbox import SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus

import gymtrain_tracing as tracing
from gymtrain_gym.sandbox import daemon_client, exit_cleanup, lost_sandboxes, settings
from gymtrain_gym.sandbox.broker_client import NOT_FOUND, BrokerClient, SandboxView
from gymtrain_gym.sandbox.daemon_client import Finished
from gymtrain_gym.sandbox.errors import BrokerRefusedError, SandboxFileError, SandboxLostError, SandboxUnavailableError
from gymtrain_gym.sandbox.http_sessions import Sessions

log = logging.getLogger(__name__)

NOT_A_PROCESS = 125  # exit code of NeMo Gym's providers where no process gave one
NEWS_SECONDS = 5.0  # for the broker to hear that a sandbox has ended
_NEWS_PAUSE_SECONDS = 0.5
_MAX_ARGUMENT_BYTES = 96 * 1024  # the kernel refuses one argument over 128 KiB
_LOSSES = SandboxLostError, SandboxUnavailableError
_STATES = {
    "Queued": SandboxStatus.STARTING,
    "Starting": SandboxStatus.STARTING,
    "Running": SandboxStatus.RUNNING,
    "Closed": SandboxStatus.STOPPED,
    "Failed": SandboxStatus.ERROR,
}


class GymtrainProvider:
    """Sandboxes of the run's broker. One instance may serve several event loops and threads."""

    name = "gymtrain"

    def __init__(
        self,
        *,
        broker_url: str | None = None,
        token_file: str | None = None,
        route: str = "direct",
        create_timeout_s: float | None = None,
    ) -> None:
        """Everything has a default from the pod's environment.

        Raises:
            SandboxSettingsError: no broker is known, or a value makes no sense.
        """
        self._settings = settings.read(broker_url, token_file, route, create_timeout_s)
        self._sessions = Sessions()
        self._broker = BrokerClient(self._settings, self._sessions)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """A running sandbox; waits in the queue for it.

        Raises:
            SandboxUnavailableError: there is none to be had.
        """
        try:
            with lost_sandboxes.noted(*_LOSSES), tracing.sent("sandbox create", {"gymtrain.image": str(spec.image)}):
                sandbox = await self._broker.create(spec, key=uuid.uuid4().hex)
        except BaseException:
            await self._sessions.close()  # callers close only what they got a sandbox from
            raise
        exit_cleanup.opened(sandbox.id, self._settings)
        return self._handle(sandbox)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Runs a shell command. A timeout is a result with error_type "timeout"; a command that could not be started
        is one with error_type "sandbox".

        Raises:
            SandboxLostError: the sandbox went away.
        """
        sandbox: SandboxView = handle.raw
        with (
            lost_sandboxes.noted(*_LOSSES),
            tracing.sent("sandbox exec", {"gymtrain.sandbox.pod": sandbox.pod}) as span,
        ):
            if len(command.encode()) > _MAX_ARGUMENT_BYTES:
                command = await self._as_file(sandbox, command)
            body = {
                "shell": command,
                "cwd": cwd or sandbox.workdir,
                "env": {**sandbox.env, **(env or {})},
                "user": sandbox.user if user is None else str(user),
                "timeoutSeconds": timeout_s,
            }
            try:
                finished = await daemon_client.execute(self._sessions, sandbox, body, timeout_s)
            except SandboxLostError as error:
                raise SandboxLostError(f"{error}. {await self._account(sandbox)}") from error
            result = _result(finished, timeout_s)
            span.set({"process.exit.code": result.return_code})
        return result

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Writes a local file into the sandbox, and the folders above it.

        Raises:
            SandboxFileError: refused.
            SandboxLostError: the sandbox went away.
        """
        sandbox: SandboxView = handle.raw
        mode = source_path.stat().st_mode  # noqa: ASYNC240 - a local disk
        write = partial(daemon_client.write_file, self._sessions, sandbox, target_path, source_path, mode)
        with lost_sandboxes.noted(*_LOSSES), tracing.sent("sandbox upload"):
            if await write():
                return
            folder = str(PurePosixPath(target_path).parent)
            made = await self.exec(handle, f"mkdir -p {shlex.quote(folder)}", timeout_s=60)
            if not made.return_code and await write():
                return
            raise SandboxFileError(f"{folder} can't be made in sandbox {sandbox.id}: {made.stderr}")

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Reads a file of the sandbox into a local one.

        Raises:
            SandboxFileError: missing, or not readable.
            SandboxLostError: the sandbox went away.
        """
        target_path.parent.mkdir(parents=True, exist_ok=True)
        with lost_sandboxes.noted(*_LOSSES), tracing.sent("sandbox download"):
            await daemon_client.read_file(self._sessions, handle.raw, source_path, target_path)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """What the broker says of the sandbox."""
        try:
            sandbox = await self._broker.get(handle.sandbox_id)
        except BrokerRefusedError as error:
            return SandboxStatus.STOPPED if error.status == NOT_FOUND else SandboxStatus.UNKNOWN
        return _STATES.get(sandbox.state, SandboxStatus.UNKNOWN)

    async def close(self, handle: SandboxHandle) -> None:
        """Ends the sandbox. An unreachable broker isn't an error: the task's result exists, and the sandbox ends
        by its idle limit."""
        try:
            with tracing.sent("sandbox close"):
                await self._broker.close(handle.sandbox_id)
            exit_cleanup.closed(handle.sandbox_id)
        except BrokerRefusedError as error:
            log.warning("sandbox %s stays until its idle limit: %s", handle.sandbox_id, error)

    async def aclose(self) -> None:
        """Closes the connections of the running event loop, once nothing uses them."""
        await self._sessions.close()

    async def endpoint(self, handle: SandboxHandle, port: int) -> Any:
        """How to reach a port of the sandbox: newer than nemo-gym 0.4."""
        from nemo_gym.sandbox.providers.base import SandboxEndpoint

        sandbox: SandboxView = handle.raw
        return SandboxEndpoint(f"{sandbox.url}/v1/ports/{port}", daemon_client.headers(sandbox))

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        """What another process needs to `connect`; no secrets: it has the run's token itself."""
        sandbox: SandboxView = handle.raw
        exit_cleanup.closed(handle.sandbox_id)  # it may outlive this process now
        return {"sandbox_id": handle.sandbox_id, "workdir": sandbox.workdir}

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """The handle of a sandbox that another process created.

        Raises:
            SandboxUnavailableError: it doesn't run any more.
        """
        id = str(descriptor["sandbox_id"])
        try:
            sandbox = await self._broker.get(id)
        except BrokerRefusedError as error:
            raise SandboxUnavailableError(f"sandbox {id} can't be connected to: {error}") from error
        if sandbox.state != "Running":
            raise SandboxUnavailableError(f"sandbox {id} can't be connected to: {sandbox.account}")
        return self._handle(sandbox)

    def _handle(self, sandbox: SandboxView) -> SandboxHandle:
        if self._settings.through_broker:
            url = f"{self._settings.broker_url}/v1/sandboxes/{sandbox.id}/daemon"
            sandbox = replace(sandbox, url=url, token=self._settings.token)
        return SandboxHandle(sandbox_id=sandbox.id, provider_name=self.name, raw=sandbox)

    async def _as_file(self, sandbox: SandboxView, command: str) -> str:
        """A command that is too long for an argument, as one that runs it from a file."""
        path = f"/tmp/gymtrain-{uuid.uuid4().hex}.sh"  # noqa: S108 - in the sandbox
        await daemon_client.write_file(self._sessions, sandbox, path, f"rm -f {path}\n{command}".encode(), 0o644)
        return f". {path}"

    async def _account(self, sandbox: SandboxView) -> str:
        """What the broker knows of a lost sandbox. The end of a container takes a moment to get to it."""
        end = time.monotonic() + NEWS_SECONDS
        try:
            async with asyncio.timeout(10 + NEWS_SECONDS):
                now = await self._broker.get(sandbox.id)
                while now.state == "Running" and time.monotonic() < end:
                    await asyncio.sleep(_NEWS_PAUSE_SECONDS)
                    now = await self._broker.get(sandbox.id)
        except (BrokerRefusedError, TimeoutError) as error:
            return f"The broker has no more information: {error}"
        return f"The broker says: {now.account}"


def _result(finished: Finished, timeout_s: float | None) -> SandboxExecResult:
    notes = [
        f"[{count} bytes of {stream} left out in the middle]"
        for stream, count in zip(("stdout", "stderr"), finished.left_out, strict=True)
        if count
    ]
    code, kind = finished.code, None
    if finished.error:
        notes.append(f"the command was not started: {finished.message or finished.error}")
        code, kind = NOT_A_PROCESS, "sandbox"
    elif finished.timed_out:
        notes.append(f"the command was ended after {timeout_s:g} s" if timeout_s else "the command took too long")
        code, kind = NOT_A_PROCESS, "timeout"
    elif finished.signal:
        number = getattr(signal, f"SIG{finished.signal.removeprefix('SIG')}", 0)
        code = 128 + int(number)  # as shells have it
    stderr = finished.stderr.decode(errors="replace")
    if notes:
        stderr = "\n".join([*([stderr.rstrip("\n")] if stderr else []), *notes])
    return SandboxExecResult(
        stdout=finished.stdout.decode(errors="replace"), stderr=stderr, return_code=code or 0, error_type=kind
    )
