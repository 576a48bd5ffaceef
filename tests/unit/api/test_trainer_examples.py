"""The examples with trainers of their own: their runs fit the types, and what they install is what the lock has."""

import re
from pathlib import Path

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec

ROOT = Path(__file__).parents[3]
TRAINERS = sorted(path.parent for path in (ROOT / "examples" / "trainers").glob("*/run.yaml"))


@pytest.mark.parametrize("folder", TRAINERS, ids=lambda folder: folder.name)
def test_the_run_starts_a_command_that_its_image_has(folder: Path) -> None:
    run = yaml.safe_load((folder / "run.yaml").read_text())
    spec = GymTrainingRunSpec.model_validate(run["spec"])
    assert run["metadata"]["name"] == f"{folder.name}-trainer"
    assert spec.trainer.image == f"gymtrain/trainer-{folder.name}:dev"
    assert spec.trainer.command is not None
    program = Path(spec.trainer.command[-1])
    assert program.parent == Path("/opt/trainer")
    assert f"examples/trainers/{folder.name}/{program.name} " in (folder / "Dockerfile").read_text()


@pytest.mark.parametrize("folder", TRAINERS, ids=lambda folder: folder.name)
def test_the_readme_of_the_examples_lists_it(folder: Path) -> None:
    assert f"(trainers/{folder.name})" in (ROOT / "examples" / "README.md").read_text()


def test_the_minimal_trainer_installs_what_the_lock_has() -> None:
    wanted = (ROOT / "examples" / "trainers" / "minimal" / "requirements.txt").read_text()
    name, version, digest = re.fullmatch(r"(\w+)==(\S+) \\\n    --hash=sha256:(\w+)\n", wanted).groups()  # type: ignore[union-attr]
    lock = (ROOT / "uv.lock").read_text()
    assert f'name = "{name}"\nversion = "{version}"' in lock
    assert digest in lock
