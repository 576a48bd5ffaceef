"""The command line on a real run: checked, watched, read, suspended, and what it made fetched."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from gymtrain_client import Client
from tests.support.command_line import Gymtrain
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run, unhurried_run
from tests.support.shown import Shell, of_page, shell_of

MINUTES = 60
QUICKSTART, TUTORIAL, RUNBOOKS = (f"docs/{name}.md" for name in ("quickstart", "tutorial", "runbooks"))
STEPS = 120  # it has to train while six commands look at it


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The folder in which the pages' commands run."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


@pytest.fixture
def shell(kubeconfig: str, kubectl: Kubectl, checkout: Path) -> Shell:
    """bash with kubectl's plugin on the PATH, in which the test's namespace is the current one."""
    run = shell_of(Path(kubeconfig), checkout, kubectl.namespace)
    path = of_page(QUICKSTART, "export PATH=$PWD/.venv/bin:$PATH")
    return lambda lines: run(f"{path}\n{lines}")


def _of_small(page: str, *beginnings: str) -> str:
    """Commands of a page, about the run `small`."""
    return re.sub(r"\b(quickstart|workplace-assistant|RUN)\b", "small", of_page(page, *beginnings))


def _written(folder: Path, run: dict[str, Any]) -> str:
    file = folder / f"{run['metadata']['name']}.yaml"
    file.write_text(yaml.safe_dump(run))
    return str(file)


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
    operator: Kubectl,
    kubectl: Kubectl,
    gymtrain: Gymtrain,
    shell: Shell,
    checkout: Path,
    kubeconfig: str,
    tmp_path: Path,
) -> None:
    client = Client(namespace=kubectl.namespace, kubeconfig=kubeconfig)
    wanted = unhurried_run("small", max_steps=STEPS, save_steps=10)
    wanted["spec"]["trainer"]["records"] = {"rollouts": "All", "samples": "Sampled"}
    del wanted["spec"]["trainer"]["checkpoint"]["retain"]  # the volume is kept
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
    with gymtrain.live_report("small") as address:
        eventually(lambda: _answers(address), "the first steps are indexed", MINUTES)
        with urlopen(f"{address}/api/overview", timeout=60) as answer:
            assert json.loads(answer.read())["run"] == "small"

    watch = of_page(QUICKSTART, "kubectl get gtr -w").split()[1:]
    assert kubectl.lines_until("Training", *watch, timeout=MINUTES)[0].split()[:2] == ["NAME", "STATE"]
    looks = _of_small(RUNBOOKS, "kubectl -n NAMESPACE get pods", "kubectl -n NAMESPACE logs")
    pods, log = (shell(look) for look in looks.replace("NAMESPACE", kubectl.namespace).splitlines())
    assert "small-inference" in pods
    assert log

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
    watch = _of_small(TUTORIAL, "kubectl get gtr workplace-assistant -w").split()[1:]
    assert kubectl.lines_until("small", *watch, timeout=MINUTES)[0].split()[:2] == ["NAME", "STATE"]
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

    shell(_of_small(QUICKSTART, "kubectl gymtrain curve", "kubectl gymtrain report"))
    assert (checkout / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "<title>small " in (checkout / "small.html").read_text()
    for look, word in (("get pods", "Running"), ("logs", "{")):
        line = of_page(RUNBOOKS, f"kubectl -n {operator.namespace} {look}").split()[1:]
        # Other tests may just have killed it.
        eventually(lambda line=line, word=word: word in operator.run(*line, check=False), look, 2 * MINUTES)  # type: ignore[misc]
    shell(_of_small(TUTORIAL, "kubectl delete gtr", "kubectl delete pvc"))
    eventually(lambda: not kubectl.list("persistentvolumeclaims"), "no volume is left", 2 * MINUTES)
