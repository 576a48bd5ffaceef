"""The Python client, as a notebook uses it."""

import json
from pathlib import Path

import pytest

from gymtrain_client import Client, ClientError, Run
from gymtrain_client.client import runs_in
from gymtrain_client.errors import ManifestError, RunFailedError, UnavailableError, WatchDeadlineError
from tests.unit.cli.fake_cluster import FakeCluster, pod
from tests.unit.cli.test_validate import condition

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: rows}
---
apiVersion: gymtrain.dev/v1alpha1
kind: GymTrainingRun
metadata: {name: r, namespace: elsewhere}
spec: {model: {source: "hf://a/b"}}
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr("gymtrain_client.client.Cluster", lambda *_: made)
    monkeypatch.setattr("gymtrain_client.client._POLL_SECONDS", 0.0)
    return made


def test_a_run_of_a_file_is_submitted_to_the_clients_namespace(cluster: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    run = Client().submit(tmp_path / "run.yaml")
    assert run.name == "r"
    assert cluster.created[0]["metadata"] == {"name": "r"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "holds no GymTrainingRun"),
        ("a: [", "can't be read"),
        ("kind: GymTrainingRun", "lacks metadata or spec"),
    ],
)
def test_a_file_without_a_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ManifestError, match=said):
        runs_in(tmp_path / "run.yaml")


def test_waiting_ends_with_the_run(cluster: FakeCluster) -> None:
    states = iter(["Progressing", "Progressing", "Complete"])

    def look(name: str) -> None:
        cluster.runs["r"] = {"status": {"conditions": [condition(next(states), "True", "m")]}}

    cluster.on_read = look
    seen: list[str] = []
    Run(cluster, "r").wait(60, on_status=lambda status: seen.append(status.conditions[0].type))  # type: ignore[arg-type]
    assert seen == ["Progressing", "Progressing", "Complete"]


def test_waiting_goes_on_after_moments_in_which_the_server_does_not_answer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_client.client._AGAIN_SECONDS", 0.0)
    answers = iter(["Progressing", "", "", "Complete"])

    def look(name: str) -> None:
        if not (state := next(answers)):
            raise UnavailableError("reading run r", "HTTP 503")
        cluster.runs["r"] = {"status": {"conditions": [condition(state, "True", "m")]}}

    cluster.on_read = look
    assert Run(cluster, "r").wait(60).conditions[0].type == "Complete"  # type: ignore[arg-type]


def test_a_server_that_never_answered_is_an_error_at_once(cluster: FakeCluster) -> None:
    def look(name: str) -> None:
        raise UnavailableError("reading run r", "HTTP 503")

    cluster.on_read = look
    with pytest.raises(UnavailableError):
        Run(cluster, "r").wait(60)  # type: ignore[arg-type]


def test_waiting_for_a_run_that_fails_says_why(cluster: FakeCluster) -> None:
    cluster.runs["r"] = {"status": {"conditions": [condition("Failed", "True", "disk full")]}}
    with pytest.raises(RunFailedError, match="r: disk full"):
        Run(cluster, "r").wait(60)  # type: ignore[arg-type]


def test_waiting_has_a_deadline(cluster: FakeCluster) -> None:
    cluster.runs["r"] = {"status": {}}
    with pytest.raises(WatchDeadlineError, match="did not end within 0"):
        Run(cluster, "r").wait(0)  # type: ignore[arg-type]


def test_steps_come_from_the_first_pod_of_each_attempt(cluster: FakeCluster) -> None:
    def line(step: int, reward: float) -> str:
        return json.dumps({"event": "step", "step": step, "reward": reward, "tokens": 10 * step})

    index = "batch.kubernetes.io__job-completion-index"
    cluster.found_pods = [
        pod("second", "trainer", **{"gymtrain.dev__attempt": "2", index: "0"}),
        pod("first", "trainer", **{"gymtrain.dev__attempt": "1", index: "0"}),
        pod("other-node", "trainer", **{"gymtrain.dev__attempt": "2", index: "1"}),
    ]
    cluster.logs = {
        ("first", "trainer"): [line(1, 0.1), line(2, 0.2)],
        ("second", "trainer"): ["INFO resumes", line(2, 0.5)],
        ("other-node", "trainer"): [line(9, 9.0)],
    }
    steps = Run(cluster, "r").steps()  # type: ignore[arg-type]
    assert [(step.step, step.reward, step.values["tokens"]) for step in steps] == [(1, 0.1, 10), (2, 0.5, 20)]


def test_without_pandas_metrics_say_what_to_install(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ClientError, match="pip install pandas"):
        Run(cluster, "r").metrics()  # type: ignore[arg-type]
