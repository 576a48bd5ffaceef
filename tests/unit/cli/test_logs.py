"""The logs of all parts of a run as one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from gymtrain_cli.logs import Line, followed, merged, seconds_of, sources
from gymtrain_client.cluster import Cluster, LogOptions
from gymtrain_client.errors import UnavailableError
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


class SlowCluster(FakeCluster):
    """Its streams don't end by themselves; `merged` reads as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.end = threading.Event()

    def log(self, pod: str, container: str, options: LogOptions | None = None) -> Iterator[str]:
        """The lines that a test put there."""
        yield from super().log(pod, container)
        if options and options.follow:
            self.end.wait(60)


@pytest.fixture
def slow(cluster: FakeCluster) -> Iterator[SlowCluster]:
    made = SlowCluster()
    made.found_pods, made.logs = cluster.found_pods, cluster.logs
    yield made
    made.end.set()


def ends_after(looks: int) -> Iterator[bool]:
    """Answers of whether the run has ended."""
    yield from [False] * looks
    while True:
        yield True


def follow(
    cluster: FakeCluster, ended: Callable[[], bool], parts: Sequence[str] = (), *, tail: int | None = None
) -> Iterator[Line]:
    """What `followed` gives, with short waits."""
    options = LogOptions(tail=tail)
    return followed(cast("Cluster", cluster), "r", parts, options, ended, new_pods_seconds=0.1, last_lines_seconds=0.1)


def test_following_ends_with_the_run_although_a_container_goes_on_and_what_it_still_said_is_shown(
    slow: SlowCluster,
) -> None:
    answers = ends_after(1)

    def ended() -> bool:
        answer = next(answers)
        if answer:
            slow.logs["r-trainer-1-0", "trainer"].append(at(6, "step 2"))  # its stream doesn't give it
        return answer

    assert sorted(line.text for line in follow(slow, ended)) == ["begins", "idle", "step 1", "step 2", "vLLM is up"]


def test_following_ends_with_the_run_although_a_container_never_said_a_word(slow: SlowCluster) -> None:
    slow.logs["r-inference-x", "inference"] = []
    answers = ends_after(1)
    assert [line.text for line in follow(slow, lambda: next(answers))] == ["begins", "step 1"]


def test_following_a_run_that_has_ended_shows_its_logs_by_time_and_ends(slow: SlowCluster) -> None:
    assert [line.text for line in follow(slow, lambda: True)] == ["begins", "vLLM is up", "step 1", "idle"]


def test_following_goes_on_with_a_container_that_was_started_again(cluster: FakeCluster) -> None:
    trainer = cluster.found_pods[0]
    shown: list[str] = []

    def ended() -> bool:
        if "step 1" in shown:
            trainer["status"]["containerStatuses"] = [{"name": "trainer", "restartCount": 1}]
            cluster.logs["r-trainer-1-0", "trainer"] = [at(8, "begins again")]
        return "begins again" in shown

    for line in follow(cluster, ended, ["trainer"]):
        shown.append(line.text)
    assert shown == ["begins", "step 1", "begins again"]


class BreakingCluster(FakeCluster):
    """Its first stream breaks after a line."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[LogOptions | None] = []

    def log(self, pod: str, container: str, options: LogOptions | None = None) -> Iterator[str]:
        """The lines that a test put there."""
        self.asked.append(options)
        lines = super().log(pod, container)
        yield next(lines)
        if len(self.asked) == 1:
            raise UnavailableError("reading the log", "the connection broke")
        yield from lines


def test_a_stream_that_breaks_is_opened_again_and_no_line_is_lost_or_comes_twice(cluster: FakeCluster) -> None:
    breaking = BreakingCluster()
    breaking.found_pods, breaking.logs = cluster.found_pods, cluster.logs
    shown: list[str] = []
    for line in follow(breaking, lambda: "step 1" in shown, ["trainer"], tail=2):
        shown.append(line.text)
    assert shown == ["begins", "step 1"]
    assert [one.tail for one in breaking.asked if one] == [2, None], "there may be more than two new ones"


def test_following_goes_on_after_moments_in_which_the_server_does_not_answer(cluster: FakeCluster) -> None:
    told: list[str] = []
    answers: list[bool | Exception] = [False, *[UnavailableError("listing the pods", "HTTP 503")] * 2, False, True]

    def ended() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lines = followed(
        cast("Cluster", cluster), "r", ["trainer"], LogOptions(), ended, told.append, new_pods_seconds=0.05
    )
    assert [line.text for line in lines] == ["begins", "step 1"]
    assert len(told) == 1
    assert "trying again: HTTP 503" in told[0]


def test_following_a_run_of_a_server_that_never_answered_ends(cluster: FakeCluster) -> None:
    def ended() -> bool:
        raise UnavailableError("reading run r", "HTTP 503")

    with pytest.raises(UnavailableError):
        list(follow(cluster, ended))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2h", 7200)])
def test_durations_are_as_kubectl_has_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "1d", "5 m"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 10m or 1h30m"):
        seconds_of(text)
