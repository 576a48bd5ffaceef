"""What pip and pipx install: the wheel that is built here has all that its commands and its packages need."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tests.support.shown import in_bash, of_page
from tests.unit.report.report_folders import made

PIPX = "pipx==1.18.4"
# What a terminal does when Tab is pressed behind `gymtrain wat`.
_TAB = """
source ~/.bashrc
COMP_WORDS=(gymtrain wat) COMP_CWORD=1
_gymtrain_completion gymtrain
echo "${COMPREPLY[@]}"
"""

type Shell = Callable[..., str]


@pytest.fixture(scope="module")
def uv() -> str:
    done = subprocess.run([ROOT / "dev" / "uv.sh"], capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This one by links, so that `make wheel` writes to a dist of the tests' own."""
    folder = tmp_path_factory.mktemp("checkout")
    for entry in ROOT.iterdir():
        if entry.name not in ("dist", "out") and not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    (folder / ".gitignore").symlink_to(ROOT / ".gitignore")  # names what is left out of the wheel
    return folder


@pytest.fixture(scope="module")
def shell(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Runs lines in bash as somebody would who has just checked this out; `programs` come first on the PATH."""
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    environment |= {"HOME": str(home), "GYMTRAIN_PYTHON": sys.executable, "COLUMNS": "200"}
    environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of uv and pip: what others have fetched

    def run(lines: str, folder: Path, *programs: Path, **more: str) -> str:
        path = os.pathsep.join([*map(str, programs), str(Path(uv).parent), os.environ["PATH"]])
        return in_bash(lines, folder, environment | {"PATH": path} | more)

    return run


@pytest.fixture(scope="module")
def wheel(shell: Shell, checkout: Path) -> Path:
    shell(of_page("docs/cli.md", "make wheel"), checkout)
    (built,) = (checkout / "dist").glob("*.whl")
    return built


@pytest.fixture
def python(uv: str, tmp_path: Path) -> Path:
    """The programs of an environment with nothing but pip."""
    command = [uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(tmp_path / "env")]
    subprocess.run(command, check=True, timeout=300)
    return tmp_path / "env" / "bin"


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


def test_pipx_installs_it_and_the_shell_completes_its_commands(
    uv: str, shell: Shell, wheel: Path, checkout: Path, tmp_path: Path
) -> None:
    tools = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "pipx")}
    command = [uv, "tool", "install", "--quiet", "--python", sys.executable, PIPX]
    subprocess.run(command, check=True, timeout=300, env=os.environ | tools)
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    programs = tmp_path / "pipx", tmp_path / "bin"
    lines = of_page("docs/cli.md", "pipx install", "gymtrain --install-completion")
    assert "bash completion installed" in shell(lines, checkout, *programs, **places)
    assert (tmp_path / "bin" / "kubectl-gymtrain").exists()
    assert shell(_TAB, tmp_path, *programs).split() == ["watch"]


def test_the_quickstart_installs_it_into_the_checkout(shell: Shell, checkout: Path) -> None:
    lines = of_page("docs/quickstart.md", "$(dev/uv.sh) sync", "export PATH=$PWD/.venv/bin:$PATH")
    said = shell(f"{lines}\ncommand -v kubectl-gymtrain\nkubectl-gymtrain --help", checkout)
    assert said.startswith(f"{checkout}/.venv/bin/kubectl-gymtrain\n")
    assert "Usage: kubectl gymtrain" in said


def test_with_the_extra_report_it_makes_reports_of_a_copied_folder(
    shell: Shell, wheel: Path, python: Path, tmp_path: Path
) -> None:
    made(tmp_path / "FOLDER")
    (tmp_path / wheel.name).symlink_to(wheel)
    shell(of_page("docs/report.md", "pip install", "python -m gymtrain_report write"), tmp_path, python)
    assert "<title>" in (tmp_path / "report.html").read_text()


def test_with_the_extra_conformance_it_tries_a_trainer(
    shell: Shell, checkout: Path, python: Path, tmp_path: Path
) -> None:
    shell(of_page("docs/own-trainer.md", "make wheel && pip install"), checkout, python)
    trainer = shutil.copytree(ROOT / "examples" / "trainers" / "minimal", tmp_path / "trainer")
    said = shell(of_page("docs/own-trainer.md", "python -m gymtrain_conformance"), trainer, python)
    assert said.endswith("the trainer conforms\n")
