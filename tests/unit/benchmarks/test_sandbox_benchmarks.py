"""How the sandbox benchmarks read what they measure; what they measure needs a cluster."""

import asyncio
import itertools
from collections import Counter

import pytest

from benchmarks.sandboxes.kube import KubeError, counted, exit_code
from benchmarks.sandboxes.load import ClaimError, Held, Rated, at_once, percentile
from benchmarks.sandboxes.sheet import Figure, as_table, own, total, writes_table
from benchmarks.sandboxes.theirs import is_ready

_METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST",x="2"} 1
apiserver_request_total{code="200",component="apiserver",group="",resource="pods",subresource="status",verb="PATCH"} 9
apiserver_request_total{code="409",component="apiserver",group="x",resource="sandboxclaims",subresource="",verb="PUT"} 2
apiserver_request_total{code="404",component="apiserver",group="",resource="pods",subresource="",verb="DELETE"} 5
apiserver_request_total{code="200",component="apiserver",group="",resource="pods",subresource="",verb="LIST"} 70
apiserver_request_total{code="200",component="apiserver",group="c",resource="leases",subresource="",verb="PUT"} 1e+03
"""


def test_writes_are_counted_by_verb_and_resource_and_reads_and_leases_are_not() -> None:
    assert counted(_METRICS) == {"POST pods": 4, "PATCH pods/status": 9, "409": 2}


def test_writes_of_a_claim_leave_out_what_is_too_rare_to_be_its() -> None:
    rated = Rated(40)
    assert rated.per_claim(Counter({"PATCH pods": 40, "POST events": 60, "DELETE pods": 1})) == {
        "POST events": 1.5,
        "PATCH pods": 1.0,
    }


def test_what_scheduler_and_node_write_is_not_counted_as_ones_own() -> None:
    writes = {"PATCH pods": 1.0, "POST pods": 1.0, "POST pods/binding": 1.0, "PATCH pods/status": 1.0}
    more = {"POST events": 2.0, "PATCH sandboxclaims/status": 1.0, "409": 7.0}
    assert own(writes | more) == 3
    assert total(writes | more) == 7


@pytest.mark.parametrize(("part", "expected"), [(50, 50.0), (95, 95.0), (99, 99.0), (100, 100.0)])
def test_percentiles(part: int, expected: float) -> None:
    assert percentile([float(n) for n in range(100, -1, -1)], part) == expected


def test_an_aim_is_missed_where_ours_is_above_it_or_not_there() -> None:
    def verdict(**values: float) -> str:
        return Figure("x", "ms", values, aim=30).verdict()

    assert verdict(ours=30, theirs=99) == "≤ 30 ms"
    assert verdict(ours=31, theirs=1) == "≤ 30 ms (missed)"
    assert verdict(ours=float("nan")) == "≤ 30 ms (missed)"


def test_sides_stand_beside_each_other() -> None:
    figures = [
        Figure("p50", "ms", {"ours": 12.34, "theirs": 1234.5}, 30, {"ours": 2.0, "theirs": 3.0}),
        Figure("whole", "s", {"ours": 1.5}),
    ]
    assert as_table(figures).splitlines() == [
        "| figure | ours | theirs | aim | load |",
        "|---|---|---|---|---|",
        "| p50 | 12.3 ms | 1234 ms | ≤ 30 ms | 2.0 / 3.0 |",
        "| whole | 1.5 s |  |  |  |",
    ]


def test_conflicts_stand_below_the_writes_and_are_no_part_of_their_sum() -> None:
    lines = writes_table({"a": {"POST pods": 2.0, "409": 0.5}, "b": {"PUT pods": 1.0}}).splitlines()
    assert lines[2:] == ["| POST pods | 2 |  |", "| PUT pods |  | 1 |", "| 409 | 0.5 |  |", "| **all** | 2.0 | 1.0 |"]


def test_a_claim_of_theirs_is_ready_when_it_says_so_and_names_its_sandbox() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert is_ready({"conditions": [ready], "sandbox": {"name": "one"}})
    assert not is_ready({"conditions": [ready]})
    assert not is_ready({"conditions": [ready | {"status": "False"}], "sandbox": {"name": "one"}})


def test_the_status_that_ends_an_exec_tells_the_exit_code() -> None:
    cause = {"reason": "ExitCode", "message": "3"}
    assert exit_code({"status": "Success"}) == 0
    assert exit_code({"status": "Failure", "details": {"causes": [cause]}}) == 3
    with pytest.raises(KubeError, match="no such container"):
        exit_code({"status": "Failure", "message": "no such container"})


class _Every2nd:
    """A side that refuses every second claim."""

    name = namespace = "every-2nd"

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def claim(self) -> Held:
        number = next(self._numbers)
        await asyncio.sleep(0)
        if number % 2:
            raise ClaimError("full")
        return Held(str(number), "pod", warm=number == 0)

    async def close(self, held: Held) -> None: ...

    async def ready(self) -> int:
        return 0

    def resident(self) -> float:
        return 0


async def test_claims_that_fail_are_counted_by_reason_and_have_no_latency() -> None:
    rated = await at_once(_Every2nd(), 6)

    assert (len(rated.seconds), len(rated.held), rated.warm) == (3, 3, 1)
    assert rated.failures == {"full": 3}
