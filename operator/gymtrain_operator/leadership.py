"""Leader election: of several replicas the holder of a Lease acts, and the others wait for it to expire.

kopf has none of its own. The rules are those of client-go: who sees the Lease unchanged for its whole
duration, by its own clock, may take it; who can't renew it in time stops at once. Clocks of different
machines are never compared.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gymtrain_api.times import to_text_with_microseconds
from gymtrain_kube.errors import ConflictError, KubeError, NotFoundError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger

NAME = "gymtrain-operator"
# Twice client-go's: a leader whose node has no core to spare must not lose the Lease, and restart, for that alone.
DURATION_SECONDS = 30.0
RENEW_DEADLINE_SECONDS = 20.0
RETRY_SECONDS = 2.0
_RELEASE_SECONDS = 10.0  # of the 30 that a pod has to end


class LostLeaseError(Exception):
    """The Lease couldn't be renewed: another replica may act by now."""


class Leadership:
    """One replica's view of the Lease."""

    def __init__(
        self,
        cluster: KubeClient,
        namespace: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._namespace = namespace
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)  # resourceVersion, and since when it is unchanged

    async def acquire(self) -> None:
        """Waits until this replica is the leader, however long that takes."""
        while True:
            if await self._try():
                break
            await self._sleep(RETRY_SECONDS)
        metrics.LEADER.set(1)
        logger().info("leading", identity=self._identity)

    async def keep_renewing(self) -> None:
        """Renews the Lease until it can't.

        Raises:
            LostLeaseError: always, in the end.
        """
        renewed = self._clock()
        while True:
            await self._sleep(RETRY_SECONDS)
            left = renewed + RENEW_DEADLINE_SECONDS - self._clock()
            # What another replica sees as the time of renewal is that of the request, not of its answer.
            asked = self._clock()
            if left > 0 and await self._try(left):
                renewed = asked
            elif self._clock() - renewed > RENEW_DEADLINE_SECONDS:
                metrics.LEADER.set(0)
                raise LostLeaseError(f"lease {self._namespace}/{NAME} not renewed for {RENEW_DEADLINE_SECONDS:.0f} s")

    async def release(self) -> None:
        """Lets another replica take over at once."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._cluster.get(kinds.LEASE, self._namespace, NAME)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._cluster.replace(kinds.LEASE, lease)
        except (KubeError, TimeoutError):
            return  # it expires by itself

    async def _try(self, seconds: float = RENEW_DEADLINE_SECONDS / 2) -> bool:
        """Takes or renews the Lease; False if another replica holds it, or the API server didn't answer within
        `seconds`, of which half the deadline is the most."""
        try:
            async with asyncio.timeout(min(seconds, RENEW_DEADLINE_SECONDS / 2)):
                return await self._take()
        except (KubeError, TimeoutError) as error:
            if not isinstance(error, ConflictError):
                logger().warning("lease", error=str(error) or type(error).__name__)
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._cluster.get(kinds.LEASE, self._namespace, NAME)
        except NotFoundError:
            meta = {"name": NAME, "namespace": self._namespace}
            fresh = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            await self._cluster.create(kinds.LEASE, fresh | {"spec": self._spec({})})
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder and holder != self._identity and not self._has_expired(lease):
            return False
        await self._cluster.replace(kinds.LEASE, lease | {"spec": self._spec(spec)})
        return True

    def _has_expired(self, lease: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        now = self._clock()
        if version != self._seen[0]:
            self._seen = (version, now)
        return now - self._seen[1] > float(lease["spec"].get("leaseDurationSeconds", DURATION_SECONDS))

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = to_text_with_microseconds(time.time())
        same = old.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION_SECONDS),
            "acquireTime": old.get("acquireTime", now) if same else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions", 0)) + (0 if same else 1),
        }
