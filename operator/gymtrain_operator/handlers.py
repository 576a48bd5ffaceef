"""What kopf watches. Every event means the same: look at the run."""

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_operator.queues import Key

type OnEvent = Callable[[Key, str, str], None]
"""Called with the run; the resourceVersion where the event is about the run itself; and the state of a run that has
ended."""

CHILDREN = (("", "v1", "pods"), ("apps", "v1", "deployments"), ("batch", "v1", "jobs"))


def register(registry: kopf.OperatorRegistry, on_event: OnEvent) -> None:
    """Registers handlers for runs and for what they own. `on.event` handlers leave no trace in the objects:
    no finalizer, no annotation, no progress in the status."""

    @kopf.on.login(registry=registry, retries=3, backoff=2.0)
    async def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        # In a pod its service account, else the kubeconfig, as `KubeClient.connect` has it. kopf asks again when
        # a token is refused, as it is after its renewal.
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.PLURAL, registry=registry)
    async def run_changed(*, meta: Any, status: Any, **_: Any) -> None:
        on_event((meta["namespace"], meta["name"]), meta.get("resourceVersion", ""), ended_as(meta, status))

    for number, (group, version, plural) in enumerate(CHILDREN):

        @kopf.on.event(group, version, plural, registry=registry, id=f"child-{number}")
        async def child_changed(*, meta: Any, **_: Any) -> None:
            on_event((meta["namespace"], meta["labels"][labels.RUN]), "", "")


def ended_as(meta: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """The state of a run that ended with the spec that it has now; empty while it goes on."""
    if status.get("observedGeneration") != meta.get("generation") or meta.get("deletionTimestamp"):
        return ""
    true = {one.get("type") for one in status.get("conditions") or [] if one.get("status") == "True"}
    return str(status.get("state", "")) if true & {ConditionType.COMPLETE, ConditionType.FAILED} else ""
