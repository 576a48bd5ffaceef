"""The volume that is made for a run's checkpoints: whose it is, and for how long."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_operator import kinds
from tests.support.reconciler_bench import Bench
from tests.support.world import UID, World, applied

CLAIM = "run-checkpoints"


def _made(**checkpoint: Any) -> World:
    return World(trainer={"checkpoint": {"size": "1Gi", **checkpoint}})


def _owners(world: World) -> list[str]:
    claim = world.objects["PersistentVolumeClaim"][CLAIM]
    return [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or []]


def _keep(world: World, **checkpoint: Any) -> None:
    world.change(trainer={"checkpoint": {"size": "1Gi", **checkpoint}})


def test_a_kept_volume_belongs_to_the_run_until_its_first_trainer_is_made() -> None:
    world = _made()
    world.reconcile()
    assert _owners(world) == [UID], "a run that is deleted now leaves no empty volume"
    world.preflight_ends()
    done = world.reconcile(5)
    assert "Job/run-trainer-1" in applied(done)
    assert _owners(world) == [], "no trainer writes to a volume that would go with the run"
    found = world.objects["PersistentVolumeClaim"][CLAIM]["metadata"]["labels"]
    assert found == labels.run_labels("run")


def test_a_run_that_fails_preflight_leaves_no_volume() -> None:
    world = _made()
    world.reconcile()
    world.preflight_ends(gym=None)
    world.settle(5)
    assert world.status.state == "Failed"
    assert _owners(world) == [UID]


def test_a_volume_that_is_to_go_with_the_run_stays_its_own() -> None:
    world = _made(retain="Delete").to_training(step=9)
    assert _owners(world) == [UID]
    world.trainer_ends(0)
    world.settle(5)
    assert _owners(world) == [UID]


def test_what_becomes_of_the_volume_can_be_changed_at_any_time() -> None:
    world = _made().to_training(step=4)
    _keep(world, retain="Delete")
    world.settle(5)
    assert _owners(world) == [UID]
    world.change(suspend=True)
    world.settle(5)
    _keep(world, retain="Keep")
    world.settle(5)
    assert _owners(world) == []
    world.change(suspend=False)
    world.seen.clear()
    world.settle(5)
    world.trainer_ends(0)
    world.settle(5)
    assert world.status.state == "Complete"
    _keep(world, retain="Delete")
    world.settle(5)
    assert _owners(world) == [UID], "after the end, too"


def test_a_change_of_retain_needs_no_new_preflight_and_is_no_change_of_what_was_checked() -> None:
    world = _made()
    world.reconcile()
    pod = world.existing("Pod")
    _keep(world, retain="Delete")
    world.reconcile(5)
    assert world.existing("Pod") == pod
    world.preflight_ends()
    world.reconcile(5)
    _keep(world, retain="Keep")
    world.reconcile(5)
    assert "changed after" not in world.condition(ConditionType.PREFLIGHT_PASSED).message
    assert _owners(world) == []


def test_owners_that_others_gave_the_volume_stay() -> None:
    world = _made().to_training(step=4)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "group", "uid": "other"}
    world.objects["PersistentVolumeClaim"][CLAIM]["metadata"]["ownerReferences"] = [other]
    _keep(world, retain="Delete")
    world.settle(5)
    assert _owners(world) == ["other", UID]
    _keep(world, retain="Keep")
    world.settle(5)
    assert _owners(world) == ["other"]


def test_the_end_of_a_runs_time_to_live_spares_a_kept_volume() -> None:
    world = World(ttlSecondsAfterFinished=100, trainer={"checkpoint": {"size": "1Gi"}}).to_training(step=9)
    world.trainer_ends(0)
    world.reconcile(5)
    assert world.reconcile(200).delete_run
    assert _owners(world) == []


# ── a run of the same name again ─────────────────────────────────────────────────────────────────────────


def _claim(owners: list[dict[str, Any]], found: dict[str, str]) -> dict[str, Any]:
    meta = {"name": CLAIM, "namespace": "ns", "labels": found, "ownerReferences": owners}
    return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}}


OWNED_BY_ANOTHER = [{"kind": labels.KIND, "name": "another", "uid": "another-uid", "controller": True}]


async def test_a_run_takes_over_the_volume_that_was_kept_of_an_earlier_one_of_its_name(bench: Bench) -> None:
    bench.cluster.put(kinds.VOLUME_CLAIM, _claim([], labels.run_labels("run")))
    bench.add_run(trainer={"checkpoint": {"size": "1Gi"}})
    await bench.pass_preflight()
    assert ("Job", "ns", "run-trainer-1") in bench.cluster.objects
    assert not [call for call in bench.cluster.calls if "PersistentVolumeClaim" in call]
    assert bench.cluster.objects["PersistentVolumeClaim", "ns", CLAIM]["metadata"]["ownerReferences"] == []


async def test_a_run_owns_the_volume_that_was_kept_where_it_is_told_to_delete_it(bench: Bench) -> None:
    bench.cluster.put(kinds.VOLUME_CLAIM, _claim([], labels.run_labels("run")))
    bench.add_run(trainer={"checkpoint": {"size": "1Gi", "retain": "Delete"}})
    await bench.reconcile()
    owners = bench.cluster.objects["PersistentVolumeClaim", "ns", CLAIM]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["run-uid"]


@pytest.mark.parametrize(
    ("owners", "found"),
    [(OWNED_BY_ANOTHER, labels.run_labels("run")), ([], {}), ([], labels.run_labels("another"))],
    ids=["with an owner of another name", "without our labels", "of another run"],
)
@pytest.mark.parametrize("retain", ["Keep", "Delete"])
async def test_a_claim_of_somebody_else_is_not_taken(
    bench: Bench, owners: list[dict[str, Any]], found: dict[str, str], retain: str
) -> None:
    bench.cluster.put(kinds.VOLUME_CLAIM, _claim(owners, found))
    bench.add_run(trainer={"checkpoint": {"size": "1Gi", "retain": retain}})
    await bench.reconcile()
    claim = bench.cluster.objects["PersistentVolumeClaim", "ns", CLAIM]["metadata"]
    assert (claim["ownerReferences"], claim["labels"]) == (owners, found)
    progressing = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Progressing")
    assert f"PersistentVolumeClaim {CLAIM} exists already and isn't part of this run" in progressing["message"]


async def test_another_volume_without_owner_is_none_of_the_runs(bench: Bench) -> None:
    """Only the claim of the checkpoints is ever kept; whatever else has our labels was given them by somebody."""
    meta = {"name": "run-model", "namespace": "ns", "labels": labels.run_labels("run")}
    bench.cluster.put(kinds.VOLUME_CLAIM, {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}})
    bench.add_run(model={"source": "hf://a/b", "storage": {"size": "1Gi"}})
    await bench.reconcile()
    progressing = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Progressing")
    assert "PersistentVolumeClaim run-model exists already and isn't part of this run" in progressing["message"]
