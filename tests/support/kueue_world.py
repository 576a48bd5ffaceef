"""What Kueue's controller does to the Workload of a `World`, as it was seen to do."""

from typing import Any

from gymtrain_api.times import to_text
from tests.support.world import World

FLAVOR = {"nodeLabels": {"pool": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def queued(**blocks: Any) -> World:
    """A run whose preflight has passed, in LocalQueue `team`."""
    world = World(**blocks)
    world.queue = "team"
    world.to_servers()
    return world


def workload(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.objects["Workload"]["gymtrainingrun-run"]
    return found


def conditions(world: World) -> dict[str, str]:
    return {one["type"]: one["status"] for one in workload(world)["status"].get("conditions") or []}


def say(world: World, kind: str, status: str, reason: str, message: str = "") -> None:
    """Kueue states a condition of the Workload."""
    old = workload(world)["status"].get("conditions") or []
    new = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": to_text(world.now),
    }
    workload(world)["status"]["conditions"] = [*(one for one in old if one["type"] != kind), new]


def admit(world: World, counts: dict[str, int] | None = None, **assignment: Any) -> World:
    """Kueue admits the Workload, with one flavor for all; `counts` of sets that get fewer pods."""
    sets = workload(world)["spec"]["podSets"]
    workload(world)["status"]["admission"] = {
        "clusterQueue": "cluster",
        "podSetAssignments": [
            {
                "name": one["name"],
                "flavors": {"cpu": "h100"},
                "count": (counts or {}).get(one["name"], one["count"]),
                **assignment,
            }
            for one in sets
        ],
    }
    world.seen["flavors"] = {"h100": FLAVOR}
    say(world, "Evicted", "False", "QuotaReserved")
    say(world, "QuotaReserved", "True", "QuotaReserved")
    say(world, "Admitted", "True", "Admitted")
    return world


def training(step: int = 3, **blocks: Any) -> World:
    """An admitted run that trains."""
    world = admit(queued(**blocks))
    world.reconcile(30)
    world.reconcile()
    world.servers_ready()
    world.trainer_reports("training", step)
    world.reconcile(20)
    return world


def evict(world: World, reason: str = "Preempted", message: str = "for a Workload of higher priority") -> None:
    """Kueue wants the quota back."""
    say(world, "Evicted", "True", reason, message)
