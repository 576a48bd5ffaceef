"""Faults: a name, what breaks and is healed again, and what that may cost the runs that it hits."""

import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tests.chaos.story import Ends, Story


@dataclass(frozen=True)
class Hit:
    """What a fault did.

    Attributes:
        what: to what, for the record.
        costs: the runs that it hit, and what it may cost each of them: their ends are judged by that.
    """

    what: str
    costs: tuple[tuple[Story, Ends | None], ...] = ()


class NothingToHit(Exception):  # noqa: N818  # no error
    """There was nothing that the fault could break just now."""


@dataclass(frozen=True)
class Fault[World]:
    """One kind of fault.

    Attributes:
        act: breaks something, waits, and heals it; raises NothingToHit where there is nothing to break.
        part: what it takes; two faults of one part don't overlap. Empty: it needs none.
        weight: how often it is drawn, beside the others.
        renews_operator: whether another process of the operator works afterwards.
    """

    name: str
    act: Callable[[World, random.Random], Awaitable[Hit]]
    part: str = ""
    weight: int = 2
    renews_operator: bool = False


def schedule[World](faults: Iterable[Fault[World]], number: int, seed: int) -> list[Fault[World]]:
    """That many faults in the order in which they come. In the second half the operator stays the same process, so that
    its memory tells something."""
    draw = random.Random(f"{seed}/faults")
    known = list(faults)
    calm = [fault for fault in known if not fault.renews_operator]
    first = draw.choices(known, [fault.weight for fault in known], k=number // 2)
    return first + draw.choices(calm, [fault.weight for fault in calm], k=number - number // 2)
