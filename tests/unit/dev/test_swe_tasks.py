"""The committed rows and Dockerfiles of examples/swe are those of its tasks."""

import json
import subprocess
from pathlib import Path

import pytest

from dev.images.dockerfiles import discover
from dev.report import DevError
from dev.swe import rows, tasks

TASKS = tasks.read()
BASE = tasks.FOLDER / "base"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_has_its_dockerfile(task: tasks.Task) -> None:
    assert (tasks.FOLDER / task.name / "Dockerfile").read_text() == tasks.dockerfile(task)


def test_each_task_has_a_row_with_its_image_and_its_words() -> None:
    found = {row["instance_id"]: (row["image_name"], row["problem_statement"]) for row in rows.read(tasks.ROWS)}
    assert found == {task.instance_id: (task.image, task.statement) for task in TASKS}


def test_every_row_has_a_fix_a_test_that_shows_it_and_names_in_lower_case() -> None:
    for row in rows.read(tasks.ROWS):
        assert row["patch"]
        assert row["test_patch"]
        assert row["FAIL_TO_PASS"]
        assert row["instance_id"] == row["instance_id"].lower()


def test_all_rows_fit_into_a_config_map() -> None:
    assert tasks.ROWS.stat().st_size < 1_000_000


def test_images_of_tasks_come_after_what_they_share() -> None:
    names = [image.name for image in discover()]
    assert {f"swe-{task.name}" for task in TASKS} <= set(names)
    assert all(names.index("swe-base") < names.index(f"swe-{task.name}") for task in TASKS)


def test_a_task_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(
        "- {name: a, base: {version: '1', sha256: x}, fix: {version: '2', sha256: y}, source: [], tests: []}"
    )
    with pytest.raises(DevError, match="task a"):
        tasks.read(path)


def shell(conda: Path, script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-uc", script],
        env={"PATH": f"{conda / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_scripts_for_conda_find_an_environment(tmp_path: Path) -> None:
    programs = tmp_path / "envs" / "testbed" / "bin"
    subprocess.run([BASE / "conda.sh", tmp_path], check=True)
    programs.mkdir(parents=True)
    (programs / "tool").write_text("#!/bin/sh\necho here\n")
    (programs / "tool").chmod(0o755)
    agents = "source $(conda info --base)/etc/profile.d/conda.sh && conda activate testbed && tool"
    assert shell(tmp_path, agents).stdout == "here\n"
    assert shell(tmp_path, f"source {tmp_path}/bin/activate; conda activate testbed; tool").stdout == "here\n"


def test_what_conda_cannot_do_here_is_said(tmp_path: Path) -> None:
    subprocess.run([BASE / "conda.sh", tmp_path], check=True)
    assert "no environment other" in shell(tmp_path, f". {tmp_path}/bin/activate; conda activate other").stderr
    done = shell(tmp_path, "conda install numpy")
    assert done.returncode == 2
    assert "only 'conda info --base'" in done.stderr


def test_rows_are_json_lines(tmp_path: Path) -> None:
    rows.write(tmp_path / "rows.jsonl", [{"a": "é"}, {"b": [1]}])
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows.read(tmp_path / "rows.jsonl") == [{"a": "é"}, {"b": [1]}]
