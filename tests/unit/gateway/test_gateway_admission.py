"""Which pods get calls."""

import pytest

from gymtrain_api.weight_version import WeightVersion
from gymtrain_gateway.pod_choice import PodFacts, Rules, Statement, admit, parse

NOW = 100.0
RULES = Rules(run="run", max_staleness=2, synced=True, adapters=False)


def pod(label: str | None, **facts: object) -> PodFacts:
    return PodFacts(answers=True, label=label, **facts)  # type: ignore[arg-type]


def reasons(pods: dict[str, PodFacts], statement: Statement | None, rules: Rules = RULES) -> dict[str, str]:
    return {url: admission.reason for url, admission in admit(pods, statement, rules, NOW).items()}


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("run:1:20", WeightVersion("run", 1, 20)),
        ("other:1:20", None),
        ("default", None),
        ("run:1", None),
        ("run:a:b", None),
        (None, None),
    ],
)
def test_only_labels_of_the_run_are_versions(label: str | None, version: WeightVersion | None) -> None:
    assert parse(label, "run") == version


def test_pods_within_the_staleness_get_calls() -> None:
    found = reasons({"a": pod("run:1:10"), "b": pod("run:1:8"), "c": pod("run:1:7")}, Statement("run:1:10", {}))
    assert (found["a"], found["b"]) == ("", "")
    assert "more than 2 behind run:1:10" in found["c"]


def test_a_restarted_pod_with_base_weights_gets_none() -> None:
    assert "not of run run" in reasons({"a": pod("default")}, Statement("run:1:1", {}))["a"]


def test_weights_of_an_earlier_attempt_get_none() -> None:
    assert "another attempt" in reasons({"a": pod("run:1:50")}, Statement("run:2:0", {}))["a"]


def test_before_the_first_sync_of_an_attempt_nobody_gets_calls() -> None:
    assert "first weights" in reasons({"a": pod("run:1:50")}, Statement(None, {}))["a"]


def test_without_the_trainer_the_newest_pod_says_what_is_current() -> None:
    found = reasons({"a": pod("run:1:50"), "b": pod("run:2:3"), "c": pod("run:2:2")}, None)
    assert found["b"] == found["c"] == ""
    assert "another attempt" in found["a"]


def test_a_pod_ahead_of_the_trainers_statement_gets_calls() -> None:
    assert reasons({"a": pod("run:1:11")}, Statement("run:1:10", {}))["a"] == ""


def test_silent_pods_and_those_whose_pause_lasts_get_none() -> None:
    silent = PodFacts(answers=False, trouble="doesn't answer: refused", label="run:1:1")
    found = reasons({"a": pod("run:1:1", paused_since=NOW - 3), "b": silent}, Statement("run:1:1", {}))
    assert found == {"a": "generation is paused", "b": "doesn't answer: refused"}


def test_a_pod_that_is_paused_for_a_moment_gets_calls_where_no_other_may() -> None:
    brief, stale = pod("run:1:5", paused_since=NOW - 0.2), pod("run:1:1", paused_since=NOW - 0.2)
    now = Statement("run:1:5", {})
    assert reasons({"a": brief, "b": pod("run:1:5")}, now) == {"a": "generation is paused", "b": ""}
    found = reasons({"a": brief, "b": stale, "c": pod("run:1:5", paused_since=NOW - 3)}, now)
    assert found["a"] == ""
    assert "more than 2 behind" in found["b"]
    assert found["c"] == "generation is paused"


def test_where_vllm_cannot_say_its_version_the_trainers_word_counts() -> None:
    found = admit({"a": pod(None), "b": pod(None)}, Statement("run:1:4", {"a": "run:1:4"}), RULES, NOW)
    assert found["a"].admissible
    assert found["a"].version == "run:1:4"
    assert "unknown weights" in found["b"].reason


def test_what_a_pod_said_before_the_trainer_brought_it_newer_weights_keeps_no_call_back() -> None:
    found = admit(
        {"a": pod("run:1:4"), "b": pod("default")}, Statement("run:1:9", {"a": "run:1:9", "b": "run:1:9"}), RULES, NOW
    )
    assert found["a"].admissible
    assert found["a"].version == "run:1:9"
    assert "not of run run" in found["b"].reason, "it was started again since"


def test_a_run_that_syncs_nothing_takes_the_weights_of_the_start() -> None:
    rules = Rules(run="run", max_staleness=0, synced=False, adapters=False)
    found = admit({"a": pod("default"), "b": pod(None), "c": pod("run:1:1")}, None, rules, NOW)
    assert [found[url].admissible for url in "abc"] == [True, True, False]
    assert found["b"].version == "default"


def test_with_adapters_the_newest_that_the_pod_serves_counts() -> None:
    rules = Rules(run="run", max_staleness=0, synced=True, adapters=True)
    served = pod("default", models=("policy", "run:1:8", "run:1:9"))
    found = admit({"a": served, "b": pod("default", models=("policy",))}, Statement("run:1:9", {}), rules, NOW)
    assert found["a"].admissible
    assert found["a"].version == "run:1:9"
    assert not found["b"].admissible
