"""When a process counts as one that grows."""

from tests.chaos.memory import Sample, growth


def _samples(pid: int, mbs: list[float], files: int = 30) -> list[Sample]:
    return [Sample(pid, mb, files) for mb in mbs]


def test_a_process_that_stays_as_it_is_is_flat() -> None:
    assert growth(_samples(1, [100.0] * 100)).is_flat


def test_a_process_that_takes_ever_more_memory_is_not() -> None:
    found = growth(_samples(1, [100.0 + number for number in range(100)]))
    assert not found.is_flat
    assert found.first_mb < 135 < 185 < found.last_mb


def test_a_process_that_leaves_files_open_is_not() -> None:
    leaking = [Sample(1, 100.0, number) for number in range(100)]
    assert not growth(leaking).is_flat


def test_its_start_is_not_taken_for_growth() -> None:
    assert growth(_samples(1, [20.0] * 15 + [100.0] * 85)).is_flat


def test_only_the_last_process_counts() -> None:
    found = growth(_samples(1, [20.0] * 100) + _samples(2, [100.0] * 100))
    assert (found.first_mb, found.last_mb) == (100.0, 100.0)


def test_a_short_time_tells_nothing() -> None:
    assert growth(_samples(1, [100.0, 200.0, 300.0])).is_flat
