"""What has to agree before a release is made, and when parts that are there are made again."""

import subprocess
from pathlib import Path

import pytest

from dev.release import __main__ as command
from dev.release import agreement, base
from dev.report import DevError
from tests.support.release_parts import ADDRESSES, layout


def test_the_repository_names_one_version() -> None:
    named = {where: version for where, version in agreement.versions().items() if "CHANGELOG" not in where}
    assert len(named) == 4
    assert len(set(named.values())) == 1


def repository(folder: Path, *, chart_version: str = "0.2.0", changelog: str = "## Unreleased\n\n## 0.2.0\n") -> Path:
    (folder / "charts" / "gymtrain").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (folder / "uv.lock").write_text('[[package]]\nname = "gymtrain"\nversion = "0.2.0"\n')
    (folder / "charts/gymtrain/Chart.yaml").write_text(f"version: {chart_version}\nappVersion: 0.2.0\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    return folder


def test_a_version_that_all_files_name_is_taken(tmp_path: Path) -> None:
    agreement.check_versions("0.2.0", agreement.versions(repository(tmp_path)))


def test_a_version_that_one_file_does_not_name_is_refused_with_the_place(tmp_path: Path) -> None:
    named = agreement.versions(repository(tmp_path, chart_version="0.1.0"))
    with pytest.raises(DevError, match=r"Chart\.yaml, version: 0\.1\.0$"):
        agreement.check_versions("0.2.0", named)


def test_a_release_without_its_part_of_the_changelog_is_refused(tmp_path: Path) -> None:
    named = agreement.versions(repository(tmp_path, changelog="## Unreleased\n"))
    with pytest.raises(DevError, match=r"CHANGELOG\.md.*: none$"):
        agreement.check_versions("0.2.0", named)


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0-rc.1", "latest"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(DevError, match="not three numbers"):
        agreement.check_versions(version, {"x": version})


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


def test_a_tree_that_git_does_not_have_is_refused_with_the_files(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "one").write_text("1")
    git(tmp_path, "add", "one")
    git(tmp_path, "commit", "-m", "one")
    assert len(agreement.commit(tmp_path)) == 40
    (tmp_path / "two").write_text("2")
    with pytest.raises(DevError, match=r"\n  \?\? two"):
        agreement.commit(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--registry", "https://r.example.com/a"], "is not HOST/PATH"),
        (["--registry", "r.example.com/a/"], "is not HOST/PATH"),
        (["--sbom-generator", "docker/scanner:1"], "names no digest"),
        (["--base-url", "http://x"], "doesn't begin with https://"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--version", "0.2.0", *ADDRESSES, *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("agreed")
def test_a_folder_of_somebody_elses_is_not_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis").write_text("x")
    assert command.main(["--version", "0.2.0", *ADDRESSES, "--out", str(tmp_path)]) == 1
    assert "has files that no release put there" in capsys.readouterr().err
    assert (tmp_path / "thesis").exists()


@pytest.mark.usefixtures("agreed")
def test_parts_of_another_commit_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "0.2.0"
    part = ["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--part", "index"]
    assert command.main(part) == 0
    (out / "made").write_text("x")
    assert command.main(part) == 0
    assert (out / "made").exists()
    monkeypatch.setattr(agreement, "commit", lambda: "d" * 40)
    assert command.main(part) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_parts_for_another_registry_are_made_again(tmp_path: Path) -> None:
    out = tmp_path / "0.2.0"
    part = ["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--part", "index"]
    assert command.main(part) == 0
    (out / "made").write_text("x")
    assert command.main([*part, "--registry", "r.example.com/team"]) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_images_upon_another_base_are_made_again_and_other_parts_keep_them(tmp_path: Path) -> None:
    out = tmp_path / "0.2.0"
    index_alone = ["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--part", "index"]
    one, another = layout(tmp_path / "one"), layout(tmp_path / "another", command="sh")
    assert command.main([*index_alone, "--base", str(one)]) == 0
    (out / "made").write_text("x")
    assert command.main([*index_alone, "--base", str(one)]) == 0
    assert command.main(index_alone) == 0
    assert (out / "made").exists()
    assert command.main([*index_alone, "--base", str(another)]) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_images_upon_debian_are_not_added_to_those_upon_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTS", {"images": (lambda job: None, "nothing")})
    out = tmp_path / "0.2.0"
    part = ["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--part", "images"]
    assert command.main([*part, "--base", str(layout(tmp_path / "one"))]) == 0
    (out / "made").write_text("x")
    assert command.main(part) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_a_base_in_the_folder_that_is_emptied_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "0.2.0"
    folder = layout(out / "images" / "debian")
    with pytest.raises(SystemExit):
        command.main(["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--base", str(folder)])
    assert "is in the release's own folder" in capsys.readouterr().err
    assert base.read(folder)
