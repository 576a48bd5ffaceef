"""Calls to the daemons in the sandboxes: whether they answer, how long they have been idle, and resets."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from gymtrain_api.sandboxes import sandbox_token
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.settings import Settings

_CALL_SECONDS = 5.0


@dataclass(frozen=True)
class DaemonReady:
    """The daemon in a pod answers.

    Attributes:
        pod: as it was when its daemon was asked.
        instance: which start of it takes calls: empty where it doesn't tell.
    """

    pod: SandboxPod
    instance: str


@dataclass(frozen=True)
class DaemonIdle:
    """A sandbox has had no call of a client for so many seconds."""

    claim: Claim
    seconds: float


class Daemons:
    """The daemons of one run's sandboxes."""

    def __init__(self, http: aiohttp.ClientSession, settings: Settings) -> None:
        self.http = http
        self._settings = settings

    def url(self, pod: SandboxPod) -> str:
        """Returns the base URL of the daemon in a pod."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return f"http://{host}:{self._settings.daemon_port}"

    def token(self, pod: SandboxPod) -> str:
        """Returns the bearer token of the daemon in a pod."""
        return sandbox_token(self._settings.run_token, pod.identity)

    async def ask_ready(self, pod: SandboxPod) -> DaemonReady | None:
        """Asks a daemon which start of it answers; None if none does."""
        found = await self._ask("GET", pod, "/healthz")
        return None if found is None else DaemonReady(pod, str(found.get("instance") or ""))

    async def ask_idle(self, claim: Claim, pod: SandboxPod) -> DaemonIdle | None:
        """Asks how long the sandbox of a claim has been idle; None if its daemon doesn't answer."""
        found = await self._ask("GET", pod, "/v1/status")
        try:
            return None if found is None else DaemonIdle(claim, float(found["idleSeconds"]))
        except (KeyError, TypeError, ValueError):
            return None

    async def reset(self, pod: SandboxPod) -> bool:
        """Has a daemon end all processes and exit, so that the kubelet restarts the container. False if it doesn't."""
        return await self._ask("POST", pod, "/v1/reset", expected=HTTPStatus.ACCEPTED) is not None

    async def _ask(
        self, method: str, pod: SandboxPod, path: str, *, expected: HTTPStatus = HTTPStatus.OK
    ) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self.token(pod)}"}
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        try:
            async with self.http.request(method, self.url(pod) + path, headers=headers, timeout=timeout) as answer:
                if answer.status != expected:
                    return None
                found = await answer.json(content_type=None)
                return found if isinstance(found, dict) else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
