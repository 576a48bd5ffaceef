"""A run that is only checked."""

from typing import Any

import pytest

from gymtrain_api.defaults import parse, resolve
from gymtrain_cli.validate import copy_of, effective, validate
from gymtrain_client.cluster import Object
from gymtrain_client.errors import UnavailableError, WatchDeadlineError
from tests.support.specs import smallest_run
from tests.unit.cli.fake_cluster import FakeCluster

RUN: dict[str, Any] = {
    "metadata": {"name": "workplace", "labels": {"team": "a"}},
    "spec": {"suspend": True, "trainer": {"checkpoint": {"size": "1Gi"}, "config": {"max_steps": 1}}},
}


def condition(kind: str, status: str, message: str) -> dict[str, str]:
    """One of the status."""
    return {
        "type": kind,
        "status": status,
        "reason": "R",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr("gymtrain_cli.validate._POLL_SECONDS", 0.0)
    return FakeCluster()


def says(cluster: FakeCluster, *conditions: dict[str, str]) -> None:
    """What the operator says of the copy, one more at each look."""
    left = list(conditions)

    def look(name: str) -> None:
        if left:
            cluster.runs[name].setdefault("status", {}).setdefault("conditions", []).append(left.pop(0))

    cluster.on_read = look


def test_the_copy_is_for_preflight_alone_and_leaves_nothing() -> None:
    made = copy_of(RUN)
    assert made["metadata"]["annotations"] == {"gymtrain.dev/preflight-only": "true"}
    assert made["metadata"]["name"].startswith("workplace-check-")
    assert made["spec"]["trainer"]["checkpoint"] == {"size": "1Gi", "retain": "Delete"}
    assert "suspend" not in made["spec"]
    assert "retain" not in RUN["spec"]["trainer"]["checkpoint"], "the run itself stays as it is"


@pytest.mark.parametrize(
    ("last", "passed"),
    [
        (condition("PreflightPassed", "True", "3 Gym servers"), True),
        (condition("Failed", "True", "spec.data.train[0]: no such file"), False),
    ],
)
def test_the_verdict_is_preflights_and_the_copy_is_deleted(
    cluster: FakeCluster, last: dict[str, str], passed: bool
) -> None:
    told: list[str] = []
    says(cluster, condition("Progressing", "True", "preflight: checking"), last)
    verdict = validate(cluster, RUN, 60, told.append)  # type: ignore[arg-type]
    assert (verdict.passed, verdict.message) == (passed, last["message"])
    assert told == ["the API server takes it; preflight begins", "preflight: checking"]
    assert len(cluster.dry) == 1
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]


def test_a_preflight_that_does_not_end_is_given_up_and_the_copy_deleted(cluster: FakeCluster) -> None:
    says(cluster, condition("Progressing", "True", "no node has room"))
    with pytest.raises(WatchDeadlineError, match=r"within 0\.2 s\. Last seen: no node has room"):
        validate(cluster, RUN, 0.2)  # type: ignore[arg-type]
    assert len(cluster.deleted) == 1


AWAY = UnavailableError("reading run r", "HTTP 503")


def test_moments_in_which_the_server_does_not_answer_are_no_verdict(cluster: FakeCluster) -> None:
    looks: list[str] = []

    def look(name: str) -> None:
        looks.append(name)
        if len(looks) < 3:
            raise AWAY
        cluster.runs[name]["status"] = {"conditions": [condition("PreflightPassed", "True", "3 Gym servers")]}

    cluster.on_read = look
    assert validate(cluster, RUN, 60).passed  # type: ignore[arg-type]
    assert len(looks) == 3


@pytest.mark.parametrize("failures", [2, 1000])
def test_the_copy_is_deleted_once_the_server_answers_or_named(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr("gymtrain_client.cluster._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("gymtrain_client.cluster._PATIENCE_SECONDS", 0.5)
    says(cluster, condition("PreflightPassed", "True", "3 Gym servers"))
    delete, tries, told = cluster.delete_run, list[str](), list[str]()

    def away(name: str) -> None:
        tries.append(name)
        if len(tries) <= failures:
            raise AWAY
        delete(name)

    monkeypatch.setattr(cluster, "delete_run", away)
    assert validate(cluster, RUN, 60, told.append).passed  # type: ignore[arg-type]
    name = cluster.created[0]["metadata"]["name"]
    if failures == 2:
        assert cluster.deleted == [name]
    else:
        assert f"kubectl delete gtr {name}" in told[-1]


def test_a_copy_whose_creation_was_not_answered_is_deleted(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cluster.create_run

    def lost(run: Object, *, dry_run: bool = False) -> Object:
        made = create(run, dry_run=dry_run)
        if not dry_run:
            raise AWAY
        return made

    monkeypatch.setattr(cluster, "create_run", lost)
    with pytest.raises(UnavailableError):
        validate(cluster, RUN, 60)  # type: ignore[arg-type]
    assert cluster.deleted == [cluster.created[0]["metadata"]["name"]]


def test_the_verdict_has_the_defaults_of_cluster_and_namespace(cluster: FakeCluster) -> None:
    passed = condition("PreflightPassed", "True", "3 Gym servers")

    def look(name: str) -> None:
        cluster.runs[name]["status"] = {"conditions": [passed], "defaults": {"storageClassName": "fast"}}

    cluster.on_read = look
    assert validate(cluster, RUN, 60).defaults.storage_class_name == "fast"  # type: ignore[arg-type]


def test_a_run_is_shown_as_it_becomes() -> None:
    run = {
        "metadata": {"name": "a"},
        "spec": smallest_run(
            trainer={"checkpoint": {"size": "1Gi"}, "template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}
        )["spec"],
    }
    defaults = {"storageClassName": "fast", "roles": {"trainer": {"nodeSelector": {"pool": "h100"}}}}
    shown = effective(run, resolve([parse(defaults, "d")]))
    assert shown["spec"]["trainer"]["checkpoint"] == {"size": "1Gi", "storageClassName": "fast"}
    assert shown["pods"]["trainer"] == {"nodeSelector": {"pool": "h100", "disk": "ssd"}}
    assert shown["pods"]["gym"] == {}
    assert shown["defaults"] == defaults
    assert shown["spec"]["model"] == run["spec"]["model"], "what nobody sets isn't there"
