"""Sizes of the spec in bytes."""

import re

import pytest

from gymtrain_api.spec.base import SIZE_PATTERN, bytes_of


@pytest.mark.parametrize(
    ("size", "number"),
    [("512", 512), ("1k", 1000), ("2Ki", 2048), ("1.5Gi", 3 << 29), ("20G", 20 * 10**9), ("1Ti", 1 << 40)],
)
def test_a_size_is_what_kubernetes_means_by_it(size: str, number: int) -> None:
    assert bytes_of(size) == number


def test_every_unit_that_a_size_may_have_is_known() -> None:
    units = SIZE_PATTERN[SIZE_PATTERN.rindex("(") + 1 : SIZE_PATTERN.rindex(")")].split("|")
    for unit in units:
        assert re.match(SIZE_PATTERN, f"3{unit}")
        assert bytes_of(f"3{unit}") % 3 == 0
