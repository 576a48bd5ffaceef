"""Calls to the daemons in the sandboxes: do they answer, for how long have they been idle, start anew."""

from http import HTTPStatus
from typing import Any

import aiohttp

from gymtrain_api.sandboxes import sandbox_token
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.settings import Settings

_CALL_SECONDS = 5.0


class Daemons:
    """The daemons of one run's sandboxes."""

    def __init__(self, http: aiohttp.ClientSession, settings: Settings) -> None:
        self.http = http
        self._settings = settings

    def url(self, pod: SandboxPod) -> str:
        """Base URL of the daemon in a pod."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return f"http://{host}:{self._settings.daemon_port}"

    def token(self, pod: SandboxPod) -> str:
        """Its bearer token."""
        return sandbox_token(self._settings.run_token, pod.identity)

    async def instance(self, pod: SandboxPod) -> str | None:
        """Which start of it takes calls: empty where it doesn't tell, None where it doesn't answer."""
        found = await self._ask("GET", pod, "/healthz")
        return None if found is None else str(found.get("instance") or "")

    async def idle_seconds(self, pod: SandboxPod) -> float | None:
        """Since the last call of a client; None where it doesn't answer."""
        found = await self._ask("GET", pod, "/v1/status")
        try:
            return None if found is None else float(found["idleSeconds"])
        except (KeyError, TypeError, ValueError):
            return None

    async def reset(self, pod: SandboxPod) -> bool:
        """Makes it end all and exit; the kubelet starts the container anew. False where it doesn't."""
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
