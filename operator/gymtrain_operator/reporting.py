"""Writing what a plan says about its run: the record, the status, then the events."""

import uuid
from typing import Any

from gymtrain_api import labels
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_kube.errors import KubeError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.reconcile.events import Event
from gymtrain_operator.reconcile.times import to_text

type Object = dict[str, Any]


async def write_status(cluster: KubeClient, run: Object, status: GymTrainingRunStatus) -> Object:
    """The run after its status was written; the same object where nothing changed.

    The write carries the resourceVersion of the spec that the status was computed from, so two writers
    never undo each other: the second one has to look again.

    Raises:
        ConflictError: the run changed meanwhile.
    """
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    if document == (run.get("status") or {}):
        return run
    metrics.STATUS_WRITES.inc()
    return await cluster.replace(kinds.RUN, run | {"status": document}, "status")


async def write_record(cluster: KubeClient, run: Object, text: str) -> Object:
    """The run after its record was written (decision 19); removed where `text` is empty.

    Raises:
        ConflictError: the run changed meanwhile.
        RejectedError: the API server doesn't take it.
    """
    return await cluster.change_metadata(kinds.RUN, run, {"annotations": {labels.RECORD: text or None}})


async def post_event(cluster: KubeClient, run: Object, event: Event, now: float) -> None:
    """Posts an event about the run. One that is lost is logged and forgotten: the status says it too."""
    meta = run["metadata"]
    time = to_text(now)
    manifest = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
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
    try:
        await cluster.create(kinds.EVENT, manifest)
    except KubeError as error:
        logger().warning("event lost", reason=event.reason, error=str(error))
