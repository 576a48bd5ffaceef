"""What comes of a step on a pod is told as its outcome, whatever the API server answers."""

from typing import Any, cast

import pytest

from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.control.pod_operations import (
    Delayed,
    MadeAhead,
    NotDeleted,
    NotMadeAhead,
    NotReset,
    Outcome,
    PodDeleted,
    PodOperations,
    PodReset,
    PodTaken,
    Refused,
    Served,
)
from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.leases import Lease, MadeFor, lease_annotations
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.policy.plan import DeletePod, MakePod, MakePodAhead, ResetPod, Step, TakePod, Want
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_kube.errors import ConflictError, KubeError, NotFoundError, RejectedError, UnreachableError
from tests.unit.broker.conftest import settings

SHAPES = PodShapes(settings())
REQUEST = SandboxRequest(image="task:1")


def _claim(id_: str = "sb-1") -> Claim:
    return Claim(id_, REQUEST, SHAPES.of("task:1"), asked_at=0.0, ttl=60.0, turn_by=60.0, start_seconds=60.0)


def _object(claim: Claim | None = None, **meta: Any) -> dict[str, Any]:
    notes = {} if claim is None else lease_annotations(_lease(claim), REQUEST)
    return {"metadata": {"name": "run-sb-a", "annotations": notes, **meta}}


def _lease(claim: Claim) -> Lease:
    return claim.lease(0.0, 60.0, restarts=0)


def _take(claim: Claim) -> TakePod:
    return TakePod(claim, pod_view.read(_object()), _lease(claim))


def _make(claim: Claim) -> MakePod:
    return MakePod(claim, "run-sb-a", _lease(claim))


class _Backend:
    """Answers each verb as it is told: with an object, or an error."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.deletes = 0

    def sandbox(self, *_: Any, lease: Lease | None = None, request: SandboxRequest | None = None, **__: Any) -> Any:
        notes = lease_annotations(lease, request) if lease and request else {}
        return {"metadata": {"name": "run-sb-a", "annotations": notes}}

    async def create(self, *_: Any, **__: Any) -> Any:
        return self._answer("create")

    async def patch(self, *_: Any) -> Any:
        return self._answer("patch")

    async def get(self, *_: Any) -> Any:
        return self._answer("get")

    async def delete(self, *_: Any, **__: Any) -> None:
        self.deletes += 1
        self._answer("delete")

    def _answer(self, verb: str) -> Any:
        answer = self.answers.get(verb)
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Daemons:
    def __init__(self, *, resets: bool) -> None:
        self.resets = resets

    async def reset(self, _: Any) -> bool:
        return self.resets


async def _outcome(step: Step, *, resets: bool = True, **answers: Any) -> Outcome:
    return await PodOperations(cast(Any, _Backend(**answers)), cast(Any, _Daemons(resets=resets))).perform(step)


async def test_a_lease_that_was_written_serves_the_claim() -> None:
    claim = _claim()
    step = _take(claim)
    assert await _outcome(step, patch=_object(claim)) == Served(step, pod_view.read(_object(claim)))


async def test_a_pod_that_another_claim_has_is_taken() -> None:
    claim, other = _claim(), _claim("sb-2")
    step = _take(claim)
    assert await _outcome(step, patch=ConflictError("test failed"), get=_object(other)) == PodTaken(
        step, pod_view.read(_object(other))
    )


async def test_a_lease_whose_answer_got_lost_is_found_on_the_pod() -> None:
    claim = _claim()
    assert isinstance(await _outcome(_take(claim), patch=ConflictError("test failed"), get=_object(claim)), Served)


@pytest.mark.parametrize(
    "answers", [{"patch": NotFoundError("")}, {"patch": ConflictError(""), "get": NotFoundError("")}]
)
async def test_a_pod_that_is_gone_is_taken_by_nobody(answers: dict[str, Any]) -> None:
    step = _take(_claim())
    assert await _outcome(step, **answers) == PodTaken(step, None)


async def test_a_leased_pod_on_its_way_out_serves_nobody() -> None:
    claim = _claim()
    leaving = _object(claim, deletionTimestamp="2026-01-01T00:00:00Z")
    assert isinstance(await _outcome(_take(claim), patch=leaving), PodTaken)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UnreachableError("away"), Delayed),
        (RejectedError("invalid", final=True), Refused),
        (RejectedError("exceeded quota", final=False), Refused),
    ],
)
async def test_a_lease_that_fails_says_whether_another_try_may_help(
    error: KubeError, outcome: type[Refused | Delayed]
) -> None:
    step = _take(_claim())
    assert await _outcome(step, patch=error) == outcome(step, str(error))


@pytest.mark.parametrize(
    ("error", "outcome", "maybe_made"),
    [
        (UnreachableError("away"), Delayed, True),
        (RejectedError("exceeded quota", final=False), Delayed, False),
        (RejectedError("invalid", final=True), Refused, False),
        (RejectedError("denied", final=False), Refused, False),
    ],
)
async def test_a_pod_that_was_not_made_says_whether_another_try_may_help_and_whether_it_may_be_there(
    error: KubeError, outcome: type[Refused | Delayed], maybe_made: bool
) -> None:
    step = _make(_claim())
    assert await _outcome(step, create=error) == outcome(step, str(error), maybe_made=maybe_made)


async def test_a_name_that_somebody_else_has_is_a_refusal() -> None:
    step = _make(_claim())
    found = await _outcome(step, create=ConflictError("already exists"), get=_object(_claim("sb-2")))
    assert found == Refused(step, "already exists", maybe_made=True)


async def test_a_pod_whose_answer_got_lost_serves_its_claim() -> None:
    claim = _claim()
    step = _make(claim)
    assert isinstance(await _outcome(step, create=ConflictError("already exists"), get=_object(claim)), Served)


async def test_a_pod_made_ahead_has_one_try() -> None:
    step = MakePodAhead(Want(SHAPES.of("task:1"), 1, MadeFor.POOL), "run-sb-a")
    assert await _outcome(step, create=_object()) == MadeAhead(step, pod_view.read(_object()))
    assert await _outcome(step, create=UnreachableError("away")) == NotMadeAhead(step, "away")


@pytest.mark.parametrize(("resets", "outcome"), [(True, PodReset), (False, NotReset)])
async def test_a_reset_is_what_the_daemon_does(resets: bool, outcome: type[PodReset | NotReset]) -> None:
    step = ResetPod(_claim(), pod_view.read(_object()))
    assert await _outcome(step, resets=resets) == outcome(step)


@pytest.mark.parametrize(
    ("error", "tries"), [(None, 1), (UnreachableError("away"), 4), (RejectedError("forbidden", final=True), 1)]
)
async def test_a_deletion_that_gets_no_answer_is_tried_again(error: KubeError | None, tries: int) -> None:
    backend = _Backend(delete=error)
    step = DeletePod("run-sb-a", "", urgent=True)
    found = await PodOperations(cast(Any, backend), cast(Any, None)).perform(step)
    assert found == (PodDeleted(step) if error is None else NotDeleted(step, str(error)))
    assert backend.deletes == tries
