"""What the audit log says about writers."""

import json
from pathlib import Path
from typing import Any

from tests.support.audit import Write, read_writes, writes_of_two

LEASE = ("leases", "gymtrain-system", "gymtrain-operator", "")
RUN = ("gymtrainingruns", "team", "a", "status")


def _write(writer: str, target: tuple[str, str, str, str], asked: float, took: float = 0.1) -> Write:
    return Write(writer, target, asked, asked + took)


def test_who_holds_the_lease_may_write() -> None:
    writes = [
        _write("one", LEASE, 0),
        _write("one", RUN, 1),
        _write("one", LEASE, 2),
        _write("two", LEASE, 10),
        _write("two", RUN, 11),
        _write("one", LEASE, 20),
        _write("one", RUN, 21),
    ]
    assert writes_of_two(writes) == []


def test_a_write_after_the_lease_was_taken_by_another_is_found() -> None:
    taken, late = _write("two", LEASE, 10), _write("one", RUN, 11)
    assert writes_of_two([_write("one", LEASE, 0), taken, late, _write("two", LEASE, 12)]) == [(late, taken)]


def test_a_write_that_went_on_while_the_lease_was_taken_is_found() -> None:
    taken, slow = _write("two", LEASE, 10, took=1.0), _write("one", RUN, 9.9, took=0.5)
    assert writes_of_two([slow, _write("one", LEASE, 0), taken]) == [(slow, taken)]


def _event(**changes: Any) -> dict[str, Any]:
    return {
        "verb": "patch",
        "user": {"extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]}},
        "objectRef": {"resource": "gymtrainingruns", "namespace": "team", "name": "a", "subresource": "status"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-11-24T10:00:00.250000Z",
        "stageTimestamp": "2026-11-24T10:00:00.750000Z",
        **changes,
    }


def test_writes_are_read_with_their_token_and_refused_ones_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    events = [_event(), _event(responseStatus={"code": 409}), _event(objectRef={"resource": "leases"})]
    log.write_text("\n".join(json.dumps(event) for event in events) + '\n{"half')
    first, second = read_writes(log)
    assert (first.writer, first.target, first.is_lease, second.is_lease) == ("JTI=1", RUN, False, True)
    assert first.done - first.asked == 0.5
