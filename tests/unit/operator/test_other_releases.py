"""Runs that another release of the operator has stored, after an upgrade and after a rollback."""

import json
from dataclasses import replace

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_operator.observe import read_run
from gymtrain_operator.reconcile.immutable_fields import recorded_spec
from gymtrain_operator.reconcile.observation import Children
from gymtrain_operator.reconcile.plan import Plan, plan
from tests.support.specs import of_a_later_release
from tests.support.world import DEFAULTS, World, deleted, spec

WHY = "spec.model.source: Field required"


def _unreadable(world: World) -> Plan:
    """What the operator does where it can't read the world's spec."""
    seen = world.observe()
    return plan(replace(seen, run=replace(seen.run, spec=None, spec_error=WHY)), DEFAULTS)


def test_a_run_with_a_field_of_a_later_release_is_read_as_the_rest_of_it() -> None:
    meta = {"name": "run", "namespace": "ns", "uid": "u"}
    run = read_run({"metadata": meta, "spec": of_a_later_release(spec())})
    assert run.spec is not None
    assert run.spec == read_run({"metadata": meta, "spec": spec()}).spec


def test_the_settings_that_preflight_saw_hold_after_a_rollback() -> None:
    world = World().to_servers()
    record = world.objects["ConfigMap"]["run-run"]["data"]
    document = json.loads(record["run.json"])
    before = recorded_spec(Children(world.objects), "run")
    record["run.json"] = json.dumps(document | {"spec": document["spec"] | {"fieldOfTomorrow": {"x": 1}}})
    assert before is not None
    assert recorded_spec(Children(world.objects), "run") == before


def test_a_run_under_way_goes_on_while_its_spec_can_t_be_read() -> None:
    world = World(sandboxes={}).to_training(step=4)
    done = _unreadable(world)
    assert (done.apply, done.scale, deleted(done)) == ((), (), [])
    progressing = next(c for c in done.status.conditions if c.type == ConditionType.PROGRESSING)
    assert (progressing.status, progressing.reason) == ("False", Reason.INVALID_SPEC)
    assert WHY in progressing.message
    assert [event.reason for event in done.events] == [Reason.INVALID_SPEC]
    others = [c for c in world.status.conditions if c.type != ConditionType.PROGRESSING]
    assert [c for c in done.status.conditions if c.type != ConditionType.PROGRESSING] == others
    assert done.status.progress == world.status.progress

    world.status = done.status
    assert _unreadable(world).events == ()
    world.reconcile(5)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINING


def test_a_suspended_run_stays_suspended_while_its_spec_can_t_be_read() -> None:
    world = World().to_training(step=4)
    world.change(suspend=True)
    world.reconcile(5)
    world.status = _unreadable(world).status
    assert world.status.state == "Suspended"
    assert world.condition(ConditionType.FAILED).status == "False"


def test_an_ended_run_stays_as_it_ended_when_its_spec_can_t_be_read() -> None:
    for code in (0, 78):
        world = World().to_training(step=9)
        world.trainer_ends(code)
        world.settle(5)
        world.generation += 1
        done = _unreadable(world)
        assert done.status.conditions == world.status.conditions
        assert (done.status.state, done.events) == (world.status.state, ())


def test_a_run_that_never_started_fails_when_its_spec_can_t_be_read() -> None:
    world = World()
    world.reconcile()
    done = _unreadable(world)
    failed = next(c for c in done.status.conditions if c.type == ConditionType.FAILED)
    assert (failed.status, failed.reason, failed.message) == ("True", Reason.INVALID_SPEC, WHY)
    assert [d.split("-")[1] for d in deleted(done)] == ["preflight"]
