"""What becomes of a run where the API server refuses what it needs, or answers nothing for a while."""

from itertools import pairwise
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.times import to_text
from gymtrain_kube.errors import ConflictError, KubeError, RejectedError, UnreachableError
from tests.support.reconciler_bench import KEY, Bench


async def test_a_refused_object_is_told_in_the_status_of_the_same_reconcile(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Pod"] = RejectedError("spec.containers[0].image: Required value", final=True)
    await bench.reconcile()
    failed = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True"
    assert "the API server refuses Pod run-preflight" in failed["message"]


async def test_a_template_of_another_shape_fails_the_run_and_is_named(bench: Bench) -> None:
    bench.add_run(trainer={"template": {"spec": {"containers": {"name": "trainer"}}}})
    calls = await bench.reconcile()
    # The run's record and its status; nothing is made.
    assert [call for call in calls if "Event" not in call] == [f"PATCH {labels.KIND}/run", f"PUT {labels.KIND}/run"]
    failed = next(c for c in bench.run["status"]["conditions"] if c["type"] == "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidSpec")
    assert "spec.trainer.template.spec.containers: must be a list" in failed["message"]


async def test_a_refused_change_of_an_object_that_is_there_is_told_and_ends_nothing(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerationz": []}}}
    bench.cluster.fail["APPLY Deployment"] = RejectedError(".spec.tolerationz: field not declared", final=True)
    bench.reconciler.event(KEY)
    calls = await bench.reconcile()
    assert not [call for call in calls if call.startswith("DELETE")]
    conditions = {c["type"]: c for c in bench.run["status"]["conditions"]}
    assert conditions["Failed"]["status"] == "False"
    assert conditions["Progressing"]["status"] == "False"
    assert "Deployment run-inference for now, retrying: .spec.tolerationz" in conditions["Progressing"]["message"]


def _condition(bench: Bench, kind: str) -> dict[str, Any]:
    return next(one for one in bench.run["status"]["conditions"] if one["type"] == kind)


async def _to_second_attempt(bench: Bench) -> None:
    """The first trainer has failed, and the next one is due."""
    await bench.pass_preflight()
    job = bench.cluster.objects["Job", "ns", "run-trainer-1"]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": to_text(bench.now)}]}
    bench.reconciler.event(KEY)
    await bench.reconcile(15)


@pytest.mark.parametrize("final", [True, False])
async def test_nothing_that_is_refused_of_a_later_attempt_ends_the_run(bench: Bench, final: bool) -> None:
    bench.add_run()
    words = 'Job.batch "run-trainer-2" is invalid' if final else "ValidatingAdmissionPolicy 'p' denied request: no"
    bench.cluster.fail["CREATE Job/run-trainer-2"] = RejectedError(words, final=final)
    await _to_second_attempt(bench)
    progressing = _condition(bench, "Progressing")
    assert _condition(bench, "Failed")["status"] == "False"
    assert progressing["status"] == "False"
    assert words in progressing["message"]
    bench.cluster.fail.clear()
    bench.reconciler.event(KEY)
    assert "CREATE Job/run-trainer-2" in await bench.reconcile(15)
    assert bench.run["status"]["attempt"] == 2


async def test_a_mistake_in_the_first_attempts_job_ends_the_run(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Job"] = RejectedError('unknown field "spec.template.spec.tolerationz"', final=True)
    await bench.pass_preflight()
    assert _condition(bench, "Failed")["reason"] == "InvalidSpec"


async def test_a_run_that_has_trained_and_resumes_is_not_ended_by_a_refusal(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["status"]["progress"] = {"step": 7}
    del bench.cluster.objects["Job", "ns", "run-trainer-1"]
    bench.cluster.fail["CREATE Job"] = RejectedError("unknown field", final=True)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    assert _condition(bench, "Failed")["status"] == "False"


async def test_what_is_refused_is_tried_again_after_pauses_that_grow(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["CREATE Pod"] = RejectedError("exceeded quota: pods", final=False)
    tries = []
    for second in range(0, 200, 5):
        bench.reconciler.event(KEY)
        if [call for call in await bench.reconcile(5) if call.startswith("CREATE Pod")]:
            tries.append(second)
        assert "exceeded quota" in _condition(bench, "Progressing")["message"]
    assert [b - a for a, b in pairwise(tries)] == [10, 20, 40, 60, 60]


async def test_an_object_that_was_changed_is_tried_at_once(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerationz": []}}}
    bench.cluster.fail["APPLY Deployment"] = RejectedError("no such field", final=True)
    bench.reconciler.event(KEY)
    await bench.reconcile()
    bench.run["spec"]["inference"] = {"template": {"spec": {"tolerations": []}}}
    bench.cluster.fail.clear()
    bench.reconciler.event(KEY)
    assert "APPLY Deployment/run-inference" in await bench.reconcile()


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("PATCH /deployments: HTTP 500: etcdserver: no leader"),
        UnreachableError("PATCH /deployments: HTTP 429: too many requests", retry_after=1.0),
        ConflictError('Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas'),
    ],
)
async def test_an_api_server_that_takes_nothing_for_a_while_is_quoted_in_the_status(
    bench: Bench, error: KubeError
) -> None:
    bench.add_run()
    await bench.pass_preflight()
    del bench.cluster.objects["Deployment", "ns", "run-inference"]
    bench.cluster.fail["APPLY Deployment"] = error
    since = to_text(bench.now + 1)
    bench.reconciler.event(KEY)
    for _ in range(8):
        with pytest.raises(type(error)):
            await bench.reconcile(1)
    progressing = _condition(bench, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "APIServerError")
    assert str(error) in progressing["message"]
    assert since in progressing["message"]
    assert [event["reason"] for event in bench.events("Warning")] == ["PreflightWarnings", "APIServerError"]
    written = bench.run["metadata"]["resourceVersion"]
    assert not bench.reconciler.event(KEY, written), "its own write of the status is no event"
    with pytest.raises(type(error)):
        await bench.reconcile(1)
    assert bench.run["metadata"]["resourceVersion"] == written, "the same words are written once"
    bench.cluster.fail.clear()
    await bench.reconcile(1)
    assert _condition(bench, "Progressing")["reason"] != "APIServerError"


async def test_one_conflict_is_no_news(bench: Bench) -> None:
    bench.add_run()
    await bench.pass_preflight()
    del bench.cluster.objects["Deployment", "ns", "run-inference"]
    bench.cluster.fail["APPLY Deployment"] = ConflictError("changed")
    before = bench.run["status"]
    bench.reconciler.event(KEY)
    with pytest.raises(ConflictError):
        await bench.reconcile()
    assert bench.run["status"] == before


async def test_a_run_that_can_t_even_be_looked_at_says_so(bench: Bench) -> None:
    bench.add_run()
    bench.cluster.fail["LIST Pod"] = RejectedError("pods is forbidden: no right to list them", final=False)
    for _ in range(8):
        with pytest.raises(RejectedError):
            await bench.reconcile(1)
    assert "no right to list them" in _condition(bench, "Progressing")["message"]
    assert bench.run["status"]["state"] == "Preflight"


async def test_an_ended_run_stays_as_it_ended_whatever_the_api_server_answers(bench: Bench) -> None:
    bench.add_run()
    await bench.reconcile()
    bench.only_pod()["status"] = {"phase": "Failed"}
    bench.reconciler.event(KEY)
    await bench.reconcile()
    before = bench.run["status"]
    bench.cluster.fail["LIST Pod"] = UnreachableError("HTTP 500")
    for _ in range(8):
        bench.reconciler.event(KEY)
        with pytest.raises(UnreachableError):
            await bench.reconcile(1)
    assert bench.run["status"] == before
