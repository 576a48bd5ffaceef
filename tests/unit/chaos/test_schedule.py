"""Which faults come, and in which order."""

import random

from tests.chaos.fault import Fault, Hit, schedule


async def _act(world: None, draw: random.Random) -> Hit:
    return Hit("nothing")


KNOWN: list[Fault[None]] = [
    Fault("renews", _act, renews_operator=True, weight=5),
    Fault("often", _act, weight=20),
    Fault("rarely", _act, weight=1),
]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert schedule(KNOWN, 50, 3) == schedule(KNOWN, 50, 3)
    assert schedule(KNOWN, 50, 3) != schedule(KNOWN, 50, 4)


def test_as_many_come_as_are_wanted_by_their_weights() -> None:
    found = [fault.name for fault in schedule(KNOWN, 301, 1)]
    assert len(found) == 301
    assert found.count("often") > found.count("renews") > found.count("rarely") > 0


def test_the_operator_stays_the_same_in_the_second_half() -> None:
    found = schedule(KNOWN, 300, 1)
    assert any(fault.renews_operator for fault in found[:150])
    assert not any(fault.renews_operator for fault in found[150:])
