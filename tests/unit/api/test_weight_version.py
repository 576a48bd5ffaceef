import pytest

from gymtrain_api.weight_version import WeightVersion


def test_a_label_names_the_version_that_wrote_it() -> None:
    version = WeightVersion("run", 2, 17)
    assert str(version) == "run:2:17"
    assert WeightVersion.parse(str(version)) == version


@pytest.mark.parametrize(
    "label", [None, "", "default", "run", "run:1", "run:1:", ":1:2", "run:one:2", "run:1:2:3", "run:1:-2"]
)
def test_anything_else_names_no_version(label: str | None) -> None:
    assert WeightVersion.parse(label) is None


def test_a_later_attempt_is_greater_whatever_the_number() -> None:
    assert WeightVersion("run", 2, 0) > WeightVersion("run", 1, 99)


def test_another_run_has_attempts_of_its_own() -> None:
    assert WeightVersion("run", 1, 3).is_of("run", 1)
    assert not WeightVersion("run", 1, 3).is_of("run", 2)
    assert not WeightVersion("run", 1, 3).is_of("other", 1)


def test_a_label_has_a_number_in_its_own_attempt_alone() -> None:
    assert WeightVersion.number_in("run:1:3", "run", 1) == 3
    assert WeightVersion.number_in("run:1:3", "run", 2) is None
    assert WeightVersion.number_in("default", "run", 1) is None
