"""Leader election: of several replicas the holder of a Lease acts, and the others wait for it to expire.

kopf has none of its own. The rules are those of client-go: who sees the Lease unchanged for its whole
duration, by its own clock, may take it; who can't renew it in time stops at once. Clocks of different
machines are never compared. Beyond those rules, each renewal moves the fence (`lease.Fence`), so that a leader which
doesn't notice that its time is over writes nothing either.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gymtrain_api.times import to_text_with_microseconds
from gymtrain_kube.errors import ConflictError, KubeError, NotFoundError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.errors import LostLeaseError
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.lease import Fence, LeaseTimes
from gymtrain_operator.log import logger

NAME = "gymtrain-operator"
_RELEASE_SECONDS = 10.0  # of the 30 that a pod has to end


class Leadership:
    """One replica's view of the Lease."""

    def __init__(
        self,
        cluster: KubeClient,
        namespace: str,
        identity: str,
        times: LeaseTimes | None = None,
        fence: Fence | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`fence` lets no write pass until this replica leads. Its clock is `clock`."""
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._namespace = namespace
        self._identity = identity
        self._times = times or LeaseTimes()
        self._fence = fence or Fence(clock)
        self._fence.close()
        self._act_until = 0.0  # by the clock
        self._seen: tuple[str, float] = ("", 0.0)  # resourceVersion, and since when it is unchanged
        self._expires = 0.0  # when a Lease that stays as it was seen may be taken

    async def acquire(self) -> None:
        """Waits until this replica is the leader, however long that takes."""
        while not await self._try(self._longest_try):
            # Not a whole period more than the Lease lasts: work waits for whoever takes it.
            left = self._expires - self._clock()
            await self._sleep(min(left, self._times.retry_period) if left > 0 else self._times.retry_period)
        metrics.LEADER.set(1)
        logger().info("leading", identity=self._identity)

    async def keep_renewing(self) -> None:
        """Renews the Lease until it can't.

        Raises:
            LostLeaseError: always, in the end; no later than others may take the Lease, if this process runs.
        """
        while True:
            left = self._act_until - self._clock()
            if left <= 0:
                metrics.LEADER.set(0)
                deadline = self._times.renew_deadline
                raise LostLeaseError(f"lease {self._namespace}/{NAME} not renewed for {deadline:g} s")
            await self._sleep(min(left, self._times.retry_period))
            left = self._act_until - self._clock()
            if left > 0:
                await self._try(min(left, self._longest_try))

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

    @property
    def _longest_try(self) -> float:
        return self._times.renew_deadline / 2

    async def _try(self, seconds: float) -> bool:
        """Takes or renews the Lease; False if another replica holds it, or the API server didn't answer within
        `seconds`."""
        # What another replica sees as the time of renewal is later than that of the request.
        asked = self._clock()
        try:
            async with asyncio.timeout(seconds):
                taken = await self._take(before=asked + seconds)
        except (KubeError, TimeoutError) as error:
            if not isinstance(error, ConflictError):
                logger().warning("lease", error=str(error) or type(error).__name__)
            return False
        if taken:
            self._act_until = asked + self._times.renew_deadline
            self._fence.open_until(self._act_until)
        return taken

    async def _take(self, before: float) -> bool:
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
        if self._clock() >= before:  # stopped meanwhile: a renewal now would keep others waiting for one who gives up
            return False
        await self._cluster.replace(kinds.LEASE, lease | {"spec": self._spec(spec)})
        return True

    def _has_expired(self, lease: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        now = self._clock()
        if version != self._seen[0]:
            self._seen = (version, now)
        self._expires = self._seen[1] + float(lease["spec"].get("leaseDurationSeconds", self._times.duration))
        return now >= self._expires

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = to_text_with_microseconds(time.time())
        same = old.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._times.duration,
            "acquireTime": old.get("acquireTime", now) if same else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions", 0)) + (0 if same else 1),
        }
