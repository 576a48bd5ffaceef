"""What a release hands on beside its images: chart, lists of packages, and an index of it all."""

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.images.dockerfiles import discover
from dev.release import __main__ as command
from dev.release import base, chart, images, index, sbom
from dev.report import DevError
from dev.settings import REPOSITORY
from tests.support.release_parts import ADDRESSES, DIGESTS, layout

VALUES = (chart.CHART / "values.yaml").read_text()


# ── chart ────────────────────────────────────────────────────────────────────────────────────────


def test_the_charts_values_name_every_image_by_digest() -> None:
    values = yaml.safe_load(chart.values_by_digest(VALUES, "r.example.com/team", DIGESTS))
    named = {"operator": values["image"]["repository"], **values["images"]}
    keys = {"inferenceGpu": "inference-gpu", "trainerGpu": "trainer-gpu"}
    for key in ("tag", "pullPolicy"):
        del named[key]
    assert named == {key: f"gymtrain/{keys.get(key, key)}@{DIGESTS[keys.get(key, key)]}" for key in named}
    assert set(named) == {*images.OF_THE_CHART, *keys}
    assert values["imageRegistry"] == "r.example.com/team/"


def test_nothing_else_of_the_values_changes_nor_its_comments() -> None:
    text = chart.values_by_digest(VALUES, "r.example.com/team", DIGESTS)
    changed = [line for line, before in zip(text.splitlines(), VALUES.splitlines(), strict=True) if line != before]
    assert len(changed) == len(images.OF_THE_CHART) + len(images.FOR_GPUS) + 1
    assert "# hands out sandboxes" in text


def test_without_a_registry_the_chart_leaves_it_to_who_installs() -> None:
    values = yaml.safe_load(chart.values_by_digest(VALUES, "", DIGESTS))
    assert values["imageRegistry"] == ""
    assert "@sha256:" in values["images"]["gym"]


def test_without_images_for_gpus_the_charts_values_name_none() -> None:
    without = {name: digest for name, digest in DIGESTS.items() if not name.endswith("-gpu")}
    values = yaml.safe_load(chart.values_by_digest(VALUES, "", without))
    assert values["images"]["inferenceGpu"] == values["images"]["trainerGpu"] == ""


def test_a_chart_without_one_of_its_images_is_refused() -> None:
    without = {name: digest for name, digest in DIGESTS.items() if name != "broker"}
    with pytest.raises(DevError, match="digests of broker"):
        chart.values_by_digest(VALUES, "", without)


def test_values_of_another_form_are_refused_and_not_left_unpinned() -> None:
    with pytest.raises(DevError, match="can't be replaced line by line"):
        chart.values_by_digest(VALUES.replace("  gym: gymtrain/gym\n", '  "gym": gymtrain/gym\n'), "", DIGESTS)


# ── lists of packages ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("operator", ["operator"]),
        ("gym-swe", ["gym", "gym-swe"]),
        ("trainer", ["inference", "trainer"]),
        ("trainer-gpu", ["inference-gpu", "trainer"]),
        ("sandbox", []),
    ],
)
def test_a_list_of_packages_is_of_what_the_dockerfiles_install(name: str, extras: list[str]) -> None:
    assert sbom.with_bases(name) == extras


def test_every_image_that_installs_python_packages_has_a_list() -> None:
    """An image whose Dockerfile installs by another option than --extra would have an empty one."""
    by_name = {image.name: image for image in discover()}
    for name in images.ALL:
        installs = "--require-hashes" in by_name[name].dockerfile.read_text()
        assert not installs or sbom.extras(by_name[name]), name


# ── index ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A release's folder."""
    for name in ("gymtrain-0.2.0.tgz", "sbom/a.cdx.json", "images/gym/index.json", "images/gym/blobs/sha256/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def release(folder: Path) -> index.Release:
    return index.Release(
        version="0.2.0",
        commit="c" * 40,
        repository="https://example.com/gymtrain",
        registry="r.example.com/team",
        images={"gym": "sha256:" + "1" * 64},
        chart="sha256:" + "2" * 64,
        files=index.digests(folder),
    )


def statement(folder: Path) -> dict[str, Any]:
    return index.statement(release(folder), {"uv.lock": "3" * 64}, {"uv": "0.13.8"}, "2026-11-24T00:00:00Z", "x")


def test_all_that_is_handed_on_is_listed_by_digest(made: Path) -> None:
    assert set(index.digests(made)) == {"gymtrain-0.2.0.tgz", "sbom/a.cdx.json", "images/gym/index.json"}


def test_sha256sum_checks_the_files_and_what_names_them(made: Path) -> None:
    index.write(made, release(made), statement(made))
    done = subprocess.run(["sha256sum", "--check", index.SUMS], cwd=made, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    (made / index.RELEASE).write_text("{}")
    assert subprocess.run(["sha256sum", "--status", "--check", index.SUMS], cwd=made, timeout=30).returncode == 1


def test_writing_the_index_again_changes_nothing(made: Path) -> None:
    index.write(made, release(made), statement(made))
    before = (made / index.SUMS).read_bytes()
    index.write(made, release(made), statement(made))
    assert (made / index.SUMS).read_bytes() == before


def test_the_provenance_is_a_statement_about_files_images_and_chart(made: Path) -> None:
    told = statement(made)
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {one["name"]: one["digest"]["sha256"] for one in told["subject"]}
    assert subjects["r.example.com/team/gymtrain/gym"] == "1" * 64
    assert subjects["r.example.com/team/charts/gymtrain"] == "2" * 64
    assert subjects["gymtrain-0.2.0.tgz"] == hashlib.sha256(b"gymtrain-0.2.0.tgz").hexdigest()


def test_the_provenance_names_the_commit_and_what_is_locked(made: Path) -> None:
    dependencies = statement(made)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert dependencies[0] == {"uri": "git+https://example.com/gymtrain", "digest": {"gitCommit": "c" * 40}}
    assert dependencies[1] == {"name": "uv.lock", "digest": {"sha256": "3" * 64}}


def test_what_is_called_locked_is_there() -> None:
    assert len(index.of_files(REPOSITORY, command._MATERIALS)) == len(command._MATERIALS)


def test_a_release_upon_another_base_says_so_wherever_it_says_what_it_was_made_from(made: Path) -> None:
    upon = replace(release(made), base="sha256:" + "4" * 64)
    told = index.statement(upon, {}, {}, "", "")
    definition = told["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["base"] == "sha256:" + "4" * 64
    assert definition["resolvedDependencies"][1:] == [
        {"name": "base image, in place of images/debian", "digest": {"sha256": "4" * 64}}
    ]
    index.write(made, upon, told)
    assert json.loads((made / index.RELEASE).read_text())["base"] == "sha256:" + "4" * 64
    assert "base" not in statement(made)["predicate"]["buildDefinition"]["externalParameters"]


@pytest.mark.usefixtures("agreed")
def test_the_index_names_the_base_that_the_images_were_built_upon_and_not_the_pinned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_uv", lambda: "echo")
    monkeypatch.setattr(command, "PARTS", {"index": (command._index, "the index")})
    out, folder = tmp_path / "0.2.0", layout(tmp_path / "base")
    part = ["--version", "0.2.0", *ADDRESSES, "--out", str(out), "--part", "index"]
    assert command.main(part) == 0
    assert "images/debian/Dockerfile" in (out / index.PROVENANCE).read_text()
    assert command.main([*part, "--base", str(folder)]) == 0
    assert command.main(part) == 0
    assert json.loads((out / index.RELEASE).read_text())["base"] == base.read(folder).digest
    assert base.read(folder).digest.removeprefix("sha256:") in (out / index.PROVENANCE).read_text()
    assert "images/debian/Dockerfile" not in (out / index.PROVENANCE).read_text()
