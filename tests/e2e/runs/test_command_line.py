"""The command line on a real run: checked, watched, read, suspended, and what it made fetched."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from gymtrain_client import Client, Run
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run

MINUTES = 60
STEPS = 300  # some ten a second: it has to train while five commands look at it

type Gymtrain = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gymtrain(kubeconfig: str, kubectl: Kubectl) -> Gymtrain:
    """Runs a command to its end, and asserts its exit code."""

    def run(*arguments: str, code: int = 0, seconds: float = 10 * MINUTES) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gymtrain_cli.main", "-n", kubectl.namespace, "--kubeconfig", kubeconfig]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "NO_PROXY": "*", "COLUMNS": "200"},
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def _written(folder: Path, run: dict[str, Any]) -> str:
    file = folder / f"{run['metadata']['name']}.yaml"
    file.write_text(yaml.safe_dump(run))
    return str(file)


@contextmanager
def served_report(run: Run) -> Iterator[str]:
    """The address of the live report, while it is served."""
    known, end, addresses = threading.Event(), threading.Event(), list[str]()

    def ready(address: str) -> None:
        addresses.append(address)
        known.set()

    serving = threading.Thread(target=run.serve_report, args=(0, ready, end), daemon=True)
    serving.start()
    assert known.wait(2 * MINUTES)
    eventually(lambda: _answers(addresses[0]), "the first steps are indexed", MINUTES)
    yield addresses[0]
    end.set()
    serving.join(MINUTES)
    assert not serving.is_alive()


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/api/overview", timeout=60):
            return True
    except OSError:
        return False


def test_a_run_is_checked_without_being_run(
    operator: Kubectl, kubectl: Kubectl, gymtrain: Gymtrain, tmp_path: Path
) -> None:
    good, bad, refused = tiny_run("good"), tiny_run("bad", learning_rte=1), tiny_run("refused")
    refused["spec"]["trainer"]["nodez"] = 2
    assert "good: passed: " in gymtrain("validate", "-f", _written(tmp_path, good)).stdout
    said = gymtrain("validate", "-f", _written(tmp_path, bad), code=1).stdout
    assert "bad: FAILED: " in said
    assert "spec.trainer.config.learning_rte" in said
    assert (
        'unknown field "spec.trainer.nodez"' in gymtrain("validate", "-f", _written(tmp_path, refused), code=2).stderr
    )
    eventually(lambda: not kubectl.list("gymtrainingruns"), "no run is left", 60)
    eventually(lambda: not kubectl.list("persistentvolumeclaims"), "no volume is left", 60)
    assert not [pod for pod in kubectl.list("pods") if "preflight" not in pod["metadata"]["name"]]


def test_a_run_is_followed_and_what_it_made_comes_home(
    operator: Kubectl, kubectl: Kubectl, gymtrain: Gymtrain, kubeconfig: str, tmp_path: Path
) -> None:
    client = Client(namespace=kubectl.namespace, kubeconfig=kubeconfig)
    wanted = tiny_run("small", max_steps=STEPS, save_steps=10)
    wanted["spec"]["trainer"]["records"] = {"rollouts": "All", "samples": "Sampled"}
    run = client.submit(wanted)
    eventually(lambda: (p := run.status.progress) is not None and p.step >= 10, "some steps are made", 8 * MINUTES)

    lines = gymtrain("logs", "small", "--tail", "50").stdout.splitlines()
    assert {"[trainer]", "[inference]", "[gateway]", "[gym]"} <= {line.split(" ", 1)[0] for line in lines}
    lines = gymtrain("logs", "small", "-p", "trainer", "-p", "inference", "--since", "10m").stdout.splitlines()
    assert {line.split(" ", 1)[0] for line in lines} == {"[trainer]", "[inference]"}
    rewards = tmp_path / "now"
    gymtrain("fetch", "small", "rewards.csv", "-o", str(rewards))
    assert (rewards / "rewards.csv").read_text().startswith("step,")

    # While it trains, a program beside the trainer reads.
    assert "recorded rollouts" in gymtrain("report", "small", "-o", str(tmp_path / "small.html")).stdout
    page = (tmp_path / "small.html").read_text()
    assert "<title>small " in page
    assert '"outcome": "trained"' in page
    one, two = (
        json.loads(line) for line in gymtrain("rollouts", "small", "--limit", "2", "--json").stdout.splitlines()
    )
    assert one["step"] == two["step"] == 1
    assert one["conversation"]["output"]
    with served_report(run) as address, urlopen(f"{address}/api/overview", timeout=60) as answer:
        assert json.loads(answer.read())["run"] == "small"

    assert gymtrain("suspend", "small").stdout == "small is suspended\n"
    eventually(lambda: run.status.state == "Suspended" and not kubectl.pods("small", role="trainer"), "it stops", 180)
    # Nobody runs that mounts the volume: a pod is made for it.
    said = gymtrain("fetch", "small", "best", "-o", str(tmp_path), code=2).stderr
    assert "there is no best in the run's folder; there is: checkpoint-" in said
    name = next(one for one in said.replace(",", " ").split() if one.startswith("checkpoint-"))
    gymtrain("fetch", "small", name, "-o", str(tmp_path))
    assert json.loads((tmp_path / name / "config.json").read_text())["model_type"]
    assert not [pod for pod in kubectl.list("pods") if "-fetch-" in pod["metadata"]["name"]]

    # Its last steps are near, and the rest of this test is about the end.
    assert gymtrain("resume", "small").stdout == "small is resumed\n"
    watched = gymtrain("watch", "small", seconds=15 * MINUTES).stdout
    assert f"{STEPS} steps" in watched
    assert "mean reward of the first 5 steps" in gymtrain("curve", "small").stdout
    assert run.wait(10).state == "Complete"
    steps = run.steps()
    assert steps[-1].step == STEPS
    assert run.fetch("model", tmp_path / "home") == tmp_path / "home" / "model"
    assert (tmp_path / "home" / "model" / "model.safetensors").stat().st_size > 0
    assert gymtrain("logs", "small", "-f", "-p", "trainer").stdout, "following a run that has ended ends"

    # What the pages show besides, once each.
    kubectl.run("wait", "--for=condition=Complete", "gtr/small", "--timeout=60m")
    assert json.loads(kubectl.run("get", "gtr", "small", "-o", "jsonpath={.status.inference}"))["replicas"] == 0
    gymtrain("curve", "small", "--png", str(tmp_path / "reward.png"))
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert gymtrain("rollouts", "small", "--outcome", "lost", "--limit", "5", "--json").stdout == ""
    found = gymtrain("rollouts", "small", "--search", "+", "--limit", "1", "--json").stdout
    assert json.loads(found)["conversation"]["output"]
    gymtrain("fetch", "small", "records", "-o", str(tmp_path / "cli"))
    assert list((tmp_path / "cli" / "records").iterdir())
    gymtrain("fetch", "small", "model", "-o", str(tmp_path / "cli"))
    assert (tmp_path / "cli" / "model" / "config.json").exists()
