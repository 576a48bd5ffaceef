"""What pipx installs: the wheel that is built here has all that the command line and the client need."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def uv() -> str:
    done = subprocess.run([ROOT / "dev" / "uv.sh"], capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [uv, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


def test_it_has_the_packages_and_both_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()
    assert {"gymtrain_cli/main.py", "gymtrain_client/send.py", "gymtrain_api/spec/run.py"} <= set(names)
    assert "gymtrain = gymtrain_cli.main:main" in commands
    assert "kubectl-gymtrain = gymtrain_cli.main:main" in commands


def test_installed_by_itself_it_starts(uv: str, wheel: Path, tmp_path: Path) -> None:
    """In an environment with nothing else: what the extra `cli` names is enough."""
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path)], check=True, timeout=300)
    python = tmp_path / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), f"{wheel}[cli]"], check=True, timeout=600)
    made = subprocess.run(
        [tmp_path / "bin" / "gymtrain", "init", "a.yaml"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "kind: GymTrainingRun" in made.stdout
    command = [str(tmp_path / "bin" / "gymtrain"), "init", "environment", "my_task", "-o", str(tmp_path / "task")]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    assert (tmp_path / "task" / "resources_servers" / "my_task" / "app.py").exists()
    code = "import gymtrain_client, gymtrain_client.cluster as c; import kubernetes"
    subprocess.run([python, "-c", code], check=True, timeout=60)
