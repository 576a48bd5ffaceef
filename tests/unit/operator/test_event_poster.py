"""Events in the cluster: what repeats is one object with a count."""

from typing import Any

import pytest

from gymtrain_api.times import to_text
from gymtrain_kube.errors import RejectedError
from gymtrain_operator.event_poster import EventPoster
from gymtrain_operator.reconcile.events import Event
from tests.support.fake_kube_client import FakeKubeClient

NOW = 1_800_000_000.0
ALARM = Event("Warning", "KLHigh", "KL 0.5 is above 0.2", "Healthy")


class Bench:
    """A poster, and the events that it has posted."""

    def __init__(self, remembered: int = 10) -> None:
        self.cluster = FakeKubeClient()
        self.poster = EventPoster(self.cluster, remembered)

    async def post(self, event: Event = ALARM, at: float = 0.0, uid: str = "uid-1") -> None:
        await self.poster.post({"metadata": {"namespace": "ns", "name": "run", "uid": uid}}, event, NOW + at)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [one for (kind, _, _), one in self.cluster.objects.items() if kind == "Event"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_first_event_names_the_run_its_reason_and_its_time(bench: Bench) -> None:
    await bench.post()
    (event,) = bench.events
    assert event["involvedObject"]["uid"] == "uid-1"
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "KLHigh", "KL 0.5 is above 0.2")
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (1, to_text(NOW), to_text(NOW))


async def test_what_repeats_is_one_event_with_a_count_and_the_newest_text(bench: Bench) -> None:
    await bench.post()
    await bench.post(at=60.0)
    await bench.post(Event("Warning", "KLHigh", "KL 0.7 is above 0.2", "Healthy"), at=120.0)
    (event,) = bench.events
    assert (event["count"], event["message"]) == (3, "KL 0.7 is above 0.2")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == (to_text(NOW), to_text(NOW + 120.0))


@pytest.mark.parametrize(
    ("event", "uid"),
    [
        (Event("Warning", "RatioOff", "", "Healthy"), "uid-1"),
        (Event("Normal", "KLHigh", "", "Healthy"), "uid-1"),
        (Event("Warning", "KLHigh", "", "Progressing"), "uid-1"),
        (ALARM, "uid-2"),
    ],
)
async def test_another_reason_type_condition_or_run_is_another_event(bench: Bench, event: Event, uid: str) -> None:
    await bench.post()
    await bench.post(event, uid=uid)
    assert [one["count"] for one in bench.events] == [1, 1]


async def test_an_event_that_the_api_server_has_forgotten_is_posted_anew(bench: Bench) -> None:
    await bench.post()
    bench.cluster.objects.clear()
    await bench.post(at=60.0)
    (event,) = bench.events
    assert (event["count"], event["firstTimestamp"]) == (1, to_text(NOW + 60.0))


async def test_after_an_hour_nobody_asks_for_the_old_event(bench: Bench) -> None:
    await bench.post()
    bench.cluster.calls.clear()
    await bench.post(at=3600.0)
    (call,) = bench.cluster.calls
    assert call.startswith("CREATE Event/")


async def test_a_lost_repetition_is_no_error_and_the_next_one_is_posted(bench: Bench) -> None:
    await bench.post()
    bench.cluster.fail["PATCH Event"] = RejectedError("no right", final=False)
    await bench.post(at=60.0)
    del bench.cluster.fail["PATCH Event"]
    await bench.post(at=120.0)
    assert sorted(one["count"] for one in bench.events) == [1, 1]


async def test_only_the_newest_events_are_remembered() -> None:
    bench = Bench(remembered=2)
    for number in (1, 2, 1, 3):  # 2 is the oldest then
        await bench.post(uid=f"uid-{number}")
    bench.cluster.calls.clear()
    for number in (1, 2):
        await bench.post(uid=f"uid-{number}")
    assert [call.split("/")[0] for call in bench.cluster.calls] == ["PATCH Event", "CREATE Event"]
