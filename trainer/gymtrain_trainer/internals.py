"""What we use of our libraries that they don't promise, as far as the trainer needs it with any training framework.

Such names stand in modules named `internals` alone: here, and in that of a framework's package (`trl/internals.py`).
Each has its row in `INTERNALS`. tests/unit/trainer/test_trainer_internals.py looks for them elsewhere, and for each row
in the libraries that are installed, so that an upgrade shows what broke. docs/upstream.md lists them for users.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Internal:
    """A name that a library keeps to itself, or may move at any time.

    Attributes:
        where: `module:name`, or `module:Class.name`.
        seen: the release in which it was looked at.
        why: what we use it for.
        instead: the public thing that would take its place.
        on_instance: the class sets it in its methods, so only its source shows it.
    """

    where: str
    seen: str
    why: str
    instead: str
    on_instance: bool = False


INTERNALS = (
    Internal(
        "torch:Tensor._version",
        "torch 2.13",
        "counts writes in place, which is how optimizers change weights: are they still those that were sent?",
        "a public counter of writes",
    ),
    Internal(
        "torch:_foreach_copy_",
        "torch 2.13",
        "casts and copies all tensors of a message in one call",
        "a place for it among torch's documented foreach operations",
    ),
)


def writes_of(tensor: Any) -> int:
    """How often torch's tensor was written to in place."""
    return int(tensor._version)


def copy_all(places: Sequence[Any], values: Sequence[Any]) -> None:
    """Copies tensors to places of the same shapes, maybe of other types."""
    import torch

    torch._foreach_copy_(list(places), list(values))
