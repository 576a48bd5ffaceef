"""`gymtrain init environment`: a folder that is the template by another name."""

import ast
from pathlib import Path

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_cli.environment import copy_environment, template
from gymtrain_cli.main import main
from gymtrain_client.errors import ClientError


def test_the_folder_has_the_templates_files_by_the_new_name(tmp_path: Path) -> None:
    made = copy_environment("river_crossing", tmp_path / "mine")
    names = {str(path.relative_to(tmp_path / "mine")) for path in made}
    there = {str(path.relative_to(template())) for path in template().rglob("*") if path.is_file()}
    assert names == {name.replace("hidden_number", "river_crossing") for name in there if "__pycache__" not in name}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_nothing_is_left_of_the_templates_name_but_the_game(tmp_path: Path) -> None:
    for path in copy_environment("river_crossing", tmp_path / "mine"):
        text = path.read_text()
        assert not [name for name in ("hidden_number", "hidden-number", "HiddenNumber") if name in text], path
        if path.suffix == ".py":
            ast.parse(text)
    run = yaml.safe_load((tmp_path / "mine" / "run.yaml").read_text())
    assert run["metadata"]["name"] == "river-crossing"
    spec = GymTrainingRunSpec.model_validate(run["spec"])
    (config,) = spec.gym.config_paths
    assert (tmp_path / "mine" / config).exists()


@pytest.mark.parametrize("name", ["My_Task", "my-task", "1task", "task_", "", "a" * 41, "../x"])
def test_a_name_that_makes_no_module_and_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClientError, match="is no name for an environment"):
        copy_environment(name, tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="is there already"):
        copy_environment("task", tmp_path)


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "environment", "my_task"]) == 0
    assert "written: my-task/run.yaml" in capsys.readouterr().out
    assert main(["init", "environment"]) == 2
