"""An environment of one's own, from the template to a run that trained on it: docs/own-environment.md, with the
development cluster's BuildKit for Docker."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dev.images.dockerfiles import Image
from dev.providers.local import Local
from dev.settings import Settings
from tests.support.faults import trainer_events
from tests.support.kubectl import Kubectl
from tests.support.node import require_own_node
from tests.support.runs import tiny_run

pytestmark = pytest.mark.large

MINUTES = 60


@pytest.fixture
def environment(kubeconfig: str, tmp_path: Path) -> Path:
    """The folder that `gymtrain init environment` writes; its image is built into the development cluster."""
    require_own_node(kubeconfig)
    command = [sys.executable, "-m", "gymtrain_cli.main", "init", "environment", "my_task"]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60, env=environment)
    return tmp_path / "my-task"


def test_an_environment_from_the_template_is_built_into_an_image_and_trained_on(
    environment: Path, operator: Kubectl, kubectl: Kubectl
) -> None:
    image = Image("my-task", environment / "Dockerfile", frozenset(), context=environment)
    Local(Settings()).build([image])

    written, run = yaml.safe_load((environment / "run.yaml").read_text())["spec"], tiny_run("my-task", max_steps=2)
    run["spec"]["gym"] = written["gym"] | {"image": image.tag}
    run["spec"]["data"] = {"train": written["data"]["train"]}
    tools = [argument for argument in written["inference"]["args"] if "tool" in argument]
    run["spec"]["inference"]["args"] = ["--max-model-len=2048", *tools]
    kubectl.apply(run)
    kubectl.wait_condition("my-task", "Complete", 10 * MINUTES)

    server = next(pod for pod in kubectl.pods("my-task") if pod["metadata"]["name"].startswith("my-task-gym-my-task-"))
    assert {one["image"] for one in server["spec"]["containers"]} == {image.tag}
    steps = trainer_events(kubectl, "my-task", "step")
    assert [step["rollouts"] for step in steps] == [8, 8]
    assert "lostRollouts" not in kubectl.get("gymtrainingrun", "my-task")["status"]["progress"]
