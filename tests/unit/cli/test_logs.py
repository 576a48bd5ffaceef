"""The logs of all parts of a run as one."""

import pytest

from gymtrain_cli.logs import followed, merged, seconds_of, sources
from gymtrain_client.cluster import LogOptions
from tests.unit.cli.fake_cluster import FakeCluster, pod


def at(second: int, text: str) -> str:
    """A line as the kubelet gives it."""
    return f"2026-11-23T10:00:{second:02}.000000000Z {text}"


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.found_pods = [pod("r-trainer-1-0", "trainer"), pod("r-inference-x", "inference"), pod("r-sandbox", "sandbox")]
    made.logs = {
        ("r-trainer-1-0", "trainer"): [at(1, "begins"), at(4, "step 1")],
        ("r-inference-x", "inference"): [at(2, "vLLM is up"), at(5, "idle")],
        ("r-sandbox", "sandbox"): [at(3, "somebody's tests")],
    }
    return made


def test_lines_of_all_parts_come_by_time_but_not_those_of_sandboxes(cluster: FakeCluster) -> None:
    lines = list(merged(cluster, "r", [], LogOptions()))  # type: ignore[arg-type]
    assert [(line.part, line.text) for line in lines] == [
        ("trainer", "begins"),
        ("inference", "vLLM is up"),
        ("trainer", "step 1"),
        ("inference", "idle"),
    ]


def test_only_the_parts_that_were_asked_for_are_read(cluster: FakeCluster) -> None:
    assert {one.part for one in sources(cluster, "r", ["inference"])} == {"inference"}  # type: ignore[arg-type]


def test_init_containers_have_logs_too(cluster: FakeCluster) -> None:
    cluster.found_pods[0]["spec"]["initContainers"] = [{"name": "fetch-model"}]
    found = [one.container for one in sources(cluster, "r", ["trainer"])]  # type: ignore[arg-type]
    assert found == ["fetch-model", "trainer"]


def test_following_finds_pods_that_come_later_and_ends_with_the_run(cluster: FakeCluster) -> None:
    late = cluster.found_pods.pop(1)
    looks = []

    def ended() -> bool:
        looks.append(1)
        if len(looks) == 3:
            cluster.found_pods.append(late)
        return len(looks) > 4

    lines = list(followed(cluster, "r", [], LogOptions(), ended, new_pods_seconds=0.01))  # type: ignore[arg-type]
    assert sorted(line.text for line in lines) == ["begins", "idle", "step 1", "vLLM is up"]
    assert len(lines) == 4, "a log that was read to its end isn't read again"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2h", 7200)])
def test_durations_are_as_kubectl_has_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "1d", "5 m"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 10m or 1h30m"):
        seconds_of(text)
