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
_REACH_SECONDS = 1.0  # for a connection that a policy drops; in a cluster one that is let through takes far less


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
class NetworkOpen:
    """The daemon in a pod answers, but its network isn't closed, or not proved to be: nobody gets it.

    Attributes:
        why: for a person, with what to do.
    """

    pod: SandboxPod
    why: str


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

    async def ask_ready(self, pod: SandboxPod) -> DaemonReady | NetworkOpen | None:
        """Asks a daemon which start of it answers, and whether it reaches what it may not; None if none does.

        A network plugin may close the network of a new pod some moments after its start.
        """
        found = await self._ask("GET", pod, "/healthz")
        if found is None:
            return None
        if kept_out := self._settings.kept_out:
            wanted = {"addresses": list(kept_out), "seconds": _REACH_SECONDS}
            said = await self._ask("POST", pod, "/v1/reach", body=wanted)
            reached = said.get("reached") if said else None
            if not isinstance(reached, list):
                return NetworkOpen(pod, "its daemon doesn't say what it reaches")
            if reached:
                return NetworkOpen(
                    pod,
                    f"its network isn't closed: it reaches {', '.join(map(str, reached))}. The cluster's network "
                    "plugin must enforce NetworkPolicies; if it has none, spec.sandboxes.network can say so: mode: "
                    "EgressAllowed with cidrs of this address",
                )
        return DaemonReady(pod, str(found.get("instance") or ""))

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
        self,
        method: str,
        pod: SandboxPod,
        path: str,
        *,
        expected: HTTPStatus = HTTPStatus.OK,
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self.token(pod)}"}
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        try:
            async with self.http.request(
                method, self.url(pod) + path, headers=headers, timeout=timeout, json=body
            ) as answer:
                if answer.status != expected:
                    return None
                found = await answer.json(content_type=None)
                return found if isinstance(found, dict) else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
