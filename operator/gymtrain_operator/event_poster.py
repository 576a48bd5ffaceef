"""Events about runs. What repeats is one object with a count, as `kubectl describe` shows it: (x3 over 20m).

Kubernetes' own components do the same, from what they remember: after a restart a repetition is a new object, so the
operator needs no right to read events. The API server forgets an event an hour after its last write.
"""

import uuid
from collections import OrderedDict
from dataclasses import dataclass

from gymtrain_api import labels
from gymtrain_api.times import to_text
from gymtrain_kube.errors import KubeError, NotFoundError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.reconcile.events import Event

_REMEMBERED = 2000  # events, of all runs
_FORGOTTEN_SECONDS = 3600.0  # event-ttl of the API server, unless it is set

type _Series = tuple[str, str, str, str]


@dataclass(frozen=True)
class _Posted:
    name: str
    count: int
    at: float


class EventPoster:
    """Posts events, and counts those that say the same again."""

    def __init__(self, cluster: KubeClient, remembered: int = _REMEMBERED) -> None:
        self._cluster = cluster
        self._most = remembered
        self._posted: OrderedDict[_Series, _Posted] = OrderedDict()  # the oldest first

    async def post(self, run: Object, event: Event, now: float) -> None:
        """Posts an event about the run. One that is lost is logged and forgotten: the status says it too.

        The same are those of one run, type and reason that are about the same condition. Their text may differ, in a
        number or the name of a pod, and the newest stays.
        """
        series = (run["metadata"]["uid"], event.type, event.reason, event.about)
        known = self._posted.pop(series, None)
        try:
            posted = await self._again(run, event, known, now) if known else None
            if posted is None:
                posted = await self._first(run, event, now)
        except KubeError as error:
            logger().warning("event lost", reason=event.reason, error=str(error))
            return
        self._posted[series] = posted
        if len(self._posted) > self._most:
            self._posted.popitem(last=False)

    async def _again(self, run: Object, event: Event, known: _Posted, now: float) -> _Posted | None:
        """Counts a repetition; None where the API server no longer has the event."""
        if now - known.at >= _FORGOTTEN_SECONDS:
            return None
        changes = {"count": known.count + 1, "lastTimestamp": to_text(now), "message": event.note}
        try:
            await self._cluster.change(kinds.EVENT, run["metadata"]["namespace"], known.name, changes)
        except NotFoundError:
            return None
        return _Posted(known.name, known.count + 1, now)

    async def _first(self, run: Object, event: Event, now: float) -> _Posted:
        meta = run["metadata"]
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        time = to_text(now)
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": meta["namespace"], "name": name},
            "involvedObject": {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.note,
            "source": {"component": labels.FIELD_MANAGER},
            "reportingComponent": labels.FIELD_MANAGER,
            "reportingInstance": labels.FIELD_MANAGER,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        await self._cluster.create(kinds.EVENT, manifest)
        return _Posted(name, 1, now)
