"""Reading what Kueue has about a run: its Workload, and the objects of the cluster that say what the Workload means."""

import time

from gymtrain_api import kueue, labels
from gymtrain_api.conditions import ConditionType
from gymtrain_kube.errors import NotFoundError, RejectedError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.manifests.workload import Priority
from gymtrain_operator.reconcile.admission import assigned_flavors, workload_of
from gymtrain_operator.reconcile.lifecycle import has_ended
from gymtrain_operator.reconcile.observation import Children, Run

_KEEP_SECONDS = 60.0  # flavors and priority classes hardly ever change
_MAX_KEPT = 1000


def queue_of(meta: Object) -> str | None:
    """Returns the LocalQueue of a run by its metadata; empty where it is to have none, None where it doesn't say."""
    label = (meta.get("labels") or {}).get(kueue.QUEUE_LABEL)
    return None if label is None else str(label)


def priority_class_of(meta: Object) -> str:
    """Returns the WorkloadPriorityClass of a run by its metadata; empty where it has none."""
    return str((meta.get("labels") or {}).get(kueue.PRIORITY_LABEL, ""))


def may_be_queued(run: Run) -> bool:
    """Whether the run has, or has had, a Workload."""
    return bool(run.queue) or run.status.condition(ConditionType.ADMITTED) is not None


def waits(run: Run) -> bool:
    """Whether the run had no admission when its status was written last."""
    admitted = run.status.condition(ConditionType.ADMITTED)
    return admitted is not None and admitted.status == "False"


class QueueObserver:
    """Reads Workloads, flavors and priority classes. Those of the cluster are kept for a minute."""

    def __init__(self, cluster: KubeClient, defaults: Defaults) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._kept: dict[tuple[str, str], tuple[float, Object]] = {}

    async def workloads(self, run: Run) -> list[Object]:
        """Lists the run's Workload.

        Raises:
            NotFoundError, RejectedError: it can't be read, and the run has pods by it: they are not to be stopped.
        """
        try:
            return await self._cluster.list(kinds.WORKLOAD, run.namespace, f"{labels.RUN}={run.name}")
        except (NotFoundError, RejectedError):
            if run.status.is_true(ConditionType.ADMITTED) and not has_ended(run.status):
                raise
            return []

    async def flavors(self, run: Run, children: Children) -> dict[str, Object]:
        """Reads the spec of each flavor that the run was assigned.

        Raises:
            KubeError: one can't be read; pods without its node labels would go anywhere.
        """
        live = workload_of(children, run.name)
        wanted = assigned_flavors(live) if live is not None else []
        return {name: (await self._of_cluster(kinds.RESOURCE_FLAVOR, name)).get("spec") or {} for name in wanted}

    async def priority(self, run: Run) -> Priority | None:
        """Reads how urgent the run is: by its label, else by the priority of its pods; None where neither says."""
        assert run.spec is not None
        if run.priority_class:
            kind, name = kinds.WORKLOAD_PRIORITY_CLASS, run.priority_class
        elif run.queue and run.spec.priority_class_name:
            kind, name = kinds.PRIORITY_CLASS, run.spec.priority_class_name
        else:
            return None
        try:
            found = await self._of_cluster(kind, name)
        except (NotFoundError, RejectedError):
            return None  # as `missing` has said before
        return Priority(kind.name, name, int(found.get("value", 0)))

    async def missing(self, run: Run) -> list[str]:
        """Says what keeps the run from its queue, one sentence each."""
        if not run.queue:
            return []
        where = f"label {kueue.QUEUE_LABEL}" if run.names_queue else "status.defaults.queueName"
        if not self._defaults.kueue:
            return [f"{where}: {kueue.ENABLE}"]
        if not await self._cluster.serves([kinds.WORKLOAD]):
            return [f"{where}: {kinds.lack(kinds.WORKLOAD)}"]
        if run.priority_class:
            try:
                await self._of_cluster(kinds.WORKLOAD_PRIORITY_CLASS, run.priority_class)
            except NotFoundError:
                return [f"label {kueue.PRIORITY_LABEL}: {kueue.PRIORITY_CLASS} {run.priority_class} not found"]
        return []

    async def _of_cluster(self, kind: Kind, name: str) -> Object:
        now = time.monotonic()
        at, found = self._kept.get((kind.name, name), (0.0, None))
        if found is None or now - at > _KEEP_SECONDS:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            found = await self._cluster.get(kind, None, name)
            self._kept[kind.name, name] = now, found
        return found
