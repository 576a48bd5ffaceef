"""`spec.resumeFrom`: what its pods see of the earlier run, and what the run says of it."""

import json
from typing import Any

import pytest

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.errors import SourceError
from gymtrain_api.resume import ResumeFrom
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.preflight import preflight_hash, preflight_pod
from gymtrain_operator.manifests.trainer import trainer_job
from gymtrain_operator.reconcile.preflight import named_objects
from tests.support.world import World
from tests.unit.operator.test_manifests import context

CLAIM = {"claimName": "ck"}
SIZE = {"size": "1Gi"}


def _run(resume_from: str | None, checkpoint: dict[str, Any], **blocks: Any) -> RunContext:
    return context(resumeFrom=resume_from, trainer={"checkpoint": checkpoint}, **blocks)


def _seen(pod: dict[str, Any], below: str = "/gymtrain/resume") -> list[tuple[str, str, str, bool]]:
    """Claim, subPath, mount path, and whether it is read-only, of the trainer container's mounts below a path."""
    claims = {v["name"]: v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
    (trainer,) = [c for c in pod["containers"] if c["name"] == "trainer"]
    return [
        (claims[m["name"]]["claimName"], m.get("subPath", ""), m["mountPath"], m.get("readOnly", False))
        for m in trainer["volumeMounts"]
        if m["mountPath"].startswith(below)
    ]


# of a run named `run`: what the trainer sees beside its own folder, and what preflight sees
CASES: list[tuple[str | None, dict[str, Any], list[Any], list[Any]]] = [
    (None, CLAIM, [], []),
    ("run", CLAIM, [], [("ck", "", "/gymtrain/resume", True)]),
    (
        "workplace/checkpoint-120",
        CLAIM,
        [("ck", "workplace", "/gymtrain/resume/workplace", True)],
        [("ck", "", "/gymtrain/resume", True)],
    ),
    ("run/previous-1", SIZE, [], [("run-checkpoints", "", "/gymtrain/resume/run", True)]),
    (
        "workplace",
        SIZE,
        [("workplace-checkpoints", "", "/gymtrain/resume/workplace", True)],
        [("workplace-checkpoints", "", "/gymtrain/resume/workplace", True)],
    ),
]


@pytest.mark.parametrize(("resume_from", "checkpoint", "trainer", "preflight"), CASES)
def test_pods_see_the_earlier_runs_folder_and_can_not_write_to_it(
    resume_from: str | None, checkpoint: dict[str, Any], trainer: list[Any], preflight: list[Any]
) -> None:
    run = _run(resume_from, checkpoint)
    job = trainer_job(run, 1)["spec"]["template"]["spec"]
    assert _seen(job) == trainer
    assert _seen(preflight_pod(run)["spec"]) == preflight
    own = [("ck", "run", "/gymtrain/checkpoints", False)] if checkpoint is CLAIM else None
    assert _seen(job, "/gymtrain/checkpoints") == (own or [("run-checkpoints", "", "/gymtrain/checkpoints", False)])


def test_pods_see_the_checkpoints_that_are_evaluated_and_no_training_data() -> None:
    run = context(
        trainer={"checkpoint": SIZE},
        data={"train": [{"source": "pvc://rows/train.jsonl"}], "validation": [{"source": "pvc://rows/held-out.jsonl"}]},
        evaluation={"withoutTraining": {"checkpointsOf": "workplace/checkpoint-120"}},
    )
    expected = [("workplace-checkpoints", "", "/gymtrain/resume/workplace", True)]
    for pod in (trainer_job(run, 1)["spec"]["template"]["spec"], preflight_pod(run)["spec"]):
        assert _seen(pod) == expected
        sources = {
            m["mountPath"] for c in pod["containers"] for m in c["volumeMounts"] if "/sources/" in m["mountPath"]
        }
        assert sources == {"/gymtrain/sources/validation-0"}
    field = "spec.evaluation.withoutTraining.checkpointsOf"
    assert ("PersistentVolumeClaim", "workplace-checkpoints", field) in named_objects(run.spec, "run")


def test_no_pod_names_a_claim_twice() -> None:
    """With some drivers such a pod never starts."""
    run = _run("workplace", CLAIM, data={"train": [{"source": "pvc://ck/rows.jsonl"}]})
    volumes = preflight_pod(run)["spec"]["volumes"]
    assert len([v for v in volumes if (v.get("persistentVolumeClaim") or {}).get("claimName") == "ck"]) == 1


def test_another_checkpoint_is_another_preflight() -> None:
    assert preflight_hash(_run("a", CLAIM)) != preflight_hash(_run("b", CLAIM))


def test_the_volume_of_another_run_has_to_exist_and_its_own_is_made() -> None:
    other, own = _run("workplace", SIZE).spec, _run("run", SIZE).spec
    assert named_objects(other, "run") == [("PersistentVolumeClaim", "workplace-checkpoints", "spec.resumeFrom")]
    assert named_objects(own, "run") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a",
        "a/",
        "../a",
        "a/..",
        "a/b",
        "a/checkpoint-",
        "a/checkpoint-1/model",
        "a/previous-1/previous-2",
        "a/best/best",
    ],
)
def test_what_is_no_checkpoint_folder_is_refused(text: str) -> None:
    with pytest.raises(SourceError):
        ResumeFrom.parse(text)


# ── what the trainer tells ───────────────────────────────────────────────────────────────────────────────

ASIDE = {"reason": "CheckpointsSetAside", "message": "ck held checkpoint-120; spec.resumeFrom: run/previous-1"}


def test_checkpoints_that_were_set_aside_are_a_warning_and_stand_in_the_condition() -> None:
    world = World().to_servers()
    world.trainer_reports("waiting_for_servers", notices=[ASIDE])
    done = world.reconcile(2)
    warnings = [event for event in done.events if event.type == "Warning"]
    assert [(event.reason, event.note) for event in warnings] == [(Reason.CHECKPOINTS_SET_ASIDE, ASIDE["message"])]
    assert ASIDE["message"] in world.condition(ConditionType.PROGRESSING).message
    world.servers_ready()
    for step in (1, 2):
        world.trainer_reports("training", step, notices=[ASIDE])
        done = world.reconcile(5)
        assert Reason.CHECKPOINTS_SET_ASIDE not in [event.reason for event in done.events], "it is told once"
        assert ASIDE["message"] in world.condition(ConditionType.PROGRESSING).message


def test_an_operator_that_was_away_tells_it_late() -> None:
    world = World().to_training(step=4)
    world.trainer_reports("training", 5, notices=[ASIDE])
    done = world.reconcile(600)
    assert Reason.CHECKPOINTS_SET_ASIDE in [event.reason for event in done.events]


@pytest.mark.parametrize(("code", "end"), [(0, "Complete"), (78, "Failed")])
def test_an_operator_that_was_away_until_the_end_tells_it_then(code: int, end: str) -> None:
    world = World().to_training(step=4)
    report = {"phase": "complete" if code == 0 else "failed", "step": 5, "max_steps": 10, "notices": [ASIDE]}
    world.trainer_ends(code, json.dumps(report))
    done = world.reconcile(600)
    assert world.status.state == end
    assert done.events[0].reason == Reason.CHECKPOINTS_SET_ASIDE, "before the end itself"


@pytest.mark.parametrize("reason", ["ResumedFromCheckpoint", "SamplingReplaced"])
def test_what_is_only_good_to_know_is_no_warning_and_a_notice_of_a_later_release_is_left_out(
    reason: str,
) -> None:
    world = World().to_training(step=4)
    notices = [{"reason": reason, "message": "on"}, {"reason": "OfTomorrow", "message": "x"}]
    world.trainer_reports("training", 5, notices=notices)
    told = [event for event in world.reconcile(5).events if event.note in {"on", "x"}]
    assert [(event.type, event.reason) for event in told] == [("Normal", reason)]
