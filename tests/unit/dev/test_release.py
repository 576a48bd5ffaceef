"""What a release says of itself, and what it refuses to be made from."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.images.dockerfiles import discover
from dev.release import __main__ as command
from dev.release import agreement, base, chart, images, index, sbom
from dev.report import DevError
from dev.settings import REPOSITORY

DIGESTS = {name: f"sha256:{number:064x}" for number, name in enumerate(["debian", "python-build", *images.ALL])}
VALUES = (chart.CHART / "values.yaml").read_text()
BASE = ["--repository", "https://example.com/gymtrain", "--base-url", "https://downloads.example.com/v0"]


# ── what has to agree ────────────────────────────────────────────────────────────────────────────


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
        command.main(["--version", "0.2.0", *BASE, *arguments])
    assert message in capsys.readouterr().err


@pytest.fixture
def agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All files name 0.2.0, and the tree is what git has."""
    monkeypatch.setattr(agreement, "versions", dict)
    monkeypatch.setattr(agreement, "commit", lambda: "c" * 40)
    monkeypatch.setattr(command, "PARTS", {"index": (lambda job: None, "nothing")})


@pytest.mark.usefixtures("agreed")
def test_a_folder_of_somebody_elses_is_not_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis").write_text("x")
    assert command.main(["--version", "0.2.0", *BASE, "--out", str(tmp_path)]) == 1
    assert "has files that no release put there" in capsys.readouterr().err
    assert (tmp_path / "thesis").exists()


@pytest.mark.usefixtures("agreed")
def test_parts_of_another_commit_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "0.2.0"
    part = ["--version", "0.2.0", *BASE, "--out", str(out), "--part", "index"]
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
    part = ["--version", "0.2.0", *BASE, "--out", str(out), "--part", "index"]
    assert command.main(part) == 0
    (out / "made").write_text("x")
    assert command.main([*part, "--registry", "r.example.com/team"]) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_images_upon_another_base_are_made_again_and_other_parts_keep_them(tmp_path: Path) -> None:
    out = tmp_path / "0.2.0"
    index_alone = ["--version", "0.2.0", *BASE, "--out", str(out), "--part", "index"]
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
    part = ["--version", "0.2.0", *BASE, "--out", str(out), "--part", "images"]
    assert command.main([*part, "--base", str(layout(tmp_path / "one"))]) == 0
    (out / "made").write_text("x")
    assert command.main(part) == 0
    assert not (out / "made").exists()


@pytest.mark.usefixtures("agreed")
def test_a_base_in_the_folder_that_is_emptied_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "0.2.0"
    folder = layout(out / "images" / "debian")
    with pytest.raises(SystemExit):
        command.main(["--version", "0.2.0", *BASE, "--out", str(out), "--base", str(folder)])
    assert "is in the release's own folder" in capsys.readouterr().err
    assert base.read(folder)


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def builder(out: Path, **more: object) -> images.Builder:
    return images.Builder(["buildctl"], "0.2.0", **{"registry": "r.example.com/team", "out": out, "work": out, **more})  # type: ignore[arg-type]


def command_of(name: str, out: Path, **more: object) -> list[str]:
    (image,) = (image for image in images.wanted([name]) if image.name == name)
    return builder(out, **more).command(image, {**DIGESTS, "runtime": "sha256:a", "runtime-gpu": "sha256:b"}, out / "m")


def test_all_that_a_release_has_can_be_built() -> None:
    assert {image.name for image in images.wanted(images.ALL)} >= {*images.ALL, "debian", "python-build", "runtime"}


def test_the_base_comes_first_and_stands_on_its_own_digest(tmp_path: Path) -> None:
    assert images.wanted(["operator"])[0].name == "debian"
    assert not any("BASE_IMAGE" in part for part in command_of("debian", tmp_path))


def test_a_pushed_image_stands_on_the_ones_before_by_digest(tmp_path: Path) -> None:
    told = command_of("operator", tmp_path)
    assert "--opt=build-arg:BASE_IMAGE=gymtrain/debian:dev" in told
    for need in ("debian", "python-build"):
        image = f"docker-image://r.example.com/team/gymtrain/{need}@{DIGESTS[need]}"
        assert f"--opt=context:gymtrain/{need}:dev={image}" in told
    assert any("name=r.example.com/team/gymtrain/operator:0.2.0,push=true" in part for part in told)


def test_without_a_registry_images_are_folders_and_stand_on_folders(tmp_path: Path) -> None:
    told = command_of("operator", tmp_path, registry="")
    assert f"--opt=context:gymtrain/debian:dev=oci-layout://debian@{DIGESTS['debian']}" in told
    assert f"--oci-layout=debian={tmp_path}/images/debian" in told
    assert any(part.startswith(f"--output=type=oci,tar=false,dest={tmp_path}/images/operator,") for part in told)
    assert not any("push=true" in part for part in told)


@pytest.mark.parametrize("registry", ["", "r.example.com/team"])
def test_layers_are_compressed_also_where_the_cluster_built_the_same_step_without(
    registry: str, tmp_path: Path
) -> None:
    (output,) = (part for part in command_of("operator", tmp_path, registry=registry) if part.startswith("--output="))
    assert output.endswith(",compression=gzip,force-compression=true")


def test_an_image_for_gpus_stands_on_the_runtime_for_gpus(tmp_path: Path) -> None:
    told = command_of("trainer-gpu", tmp_path)
    assert "--opt=build-arg:RUNTIME_IMAGE=gymtrain/runtime-gpu:dev" in told
    assert any(part.startswith("--opt=context:gymtrain/runtime-gpu:dev=") for part in told)


def test_each_image_has_provenance_and_packages_where_a_scanner_is_named(tmp_path: Path) -> None:
    assert "--opt=attest:provenance=mode=max" in command_of("operator", tmp_path)
    assert not any("attest:sbom" in part for part in command_of("operator", tmp_path))
    told = command_of("operator", tmp_path, sbom_generator="scanner@sha256:1")
    assert "--opt=attest:sbom=generator=scanner@sha256:1" in told


def test_a_build_without_a_digest_is_refused() -> None:
    assert images.digest_of(json.dumps({"containerimage.digest": "sha256:1"}), "x") == "sha256:1"
    with pytest.raises(DevError, match="told no digest"):
        images.digest_of("{}", "x")


_BUILDCTL = """#!/bin/sh
case $* in "debug workers"*)
    echo '[{"platforms": [{"architecture": "amd64", "os": "linux"}, {"architecture": "386", "os": "linux"}]}]'
    exit ;;
esac
for word in "$@"; do
    case $word in
    --metadata-file=*) file=${word#*=} ;;
    --output=*) output=$word ;;
    esac
done
echo "$output" >> $(dirname "$file")/outputs
case $output in *BROKEN* | */images/$(cat "$(dirname "$0")/broken" 2>/dev/null),*) exit 3 ;; esac
folder=${output#*dest=}
folder=${folder%%,*}/blobs/sha256
mkdir -p "$folder"
printf layer > "$folder/1"
touch "$folder/../../index.json"
printf '{"containerimage.digest": "sha256:%s"}' "$(basename "$file" .json)" > "$file"
"""


def fake_builder(tmp_path: Path, version: str = "0.2.0", given: base.Base | None = None) -> images.Builder:
    """One whose BuildKit notes what it is to write, and tells names for digests."""
    program = tmp_path / "buildctl"
    program.write_text(_BUILDCTL)
    program.chmod(0o755)
    return images.Builder([str(program)], version, "", tmp_path / "out", tmp_path / "work", base=given)


def test_images_are_built_in_order_and_known_by_what_buildkit_tells(tmp_path: Path) -> None:
    made = images.build(fake_builder(tmp_path), images.wanted(["gateway"]))
    assert made == {name: f"sha256:{name}" for name in ("debian", "python-build", "gateway")}
    outputs = (tmp_path / "work" / "outputs").read_text().splitlines()
    assert [line.partition("/images/")[2].partition(",")[0] for line in outputs] == list(made)
    assert "oci-layout://python-build@sha256:python-build" in (tmp_path / "work" / "gateway.log").read_text()


def test_what_several_layouts_have_is_on_the_disk_once(tmp_path: Path) -> None:
    for name in ("runtime", "inference", "trainer"):
        layout(tmp_path / name, command=name)
    first, *others = (tmp_path / name for name in ("runtime", "inference", "trainer"))
    for folder in others:
        images.share(folder, tmp_path)
    layer = Path("blobs", "sha256", hashlib.sha256(b"x").hexdigest())
    assert all((folder / layer).samefile(first / layer) for folder in others)
    assert len({base.read(tmp_path / name).digest for name in ("runtime", "inference", "trainer")}) == 3


def test_images_that_are_built_share_what_they_have_in_common(tmp_path: Path) -> None:
    images.build(fake_builder(tmp_path), images.wanted(["gateway"]))
    first, second = (tmp_path / "out" / "images" / name / "blobs/sha256/1" for name in ("debian", "gateway"))
    assert first.read_text() == "layer"
    assert second.samefile(first)


def test_images_that_were_built_before_are_not_built_again_if_they_are_still_there(tmp_path: Path) -> None:
    told: list[list[str]] = []
    chosen = images.wanted(["gateway"])
    made = images.build(fake_builder(tmp_path), chosen[:2], tell=lambda made: told.append(list(made)))
    assert told == [["debian"], ["debian", "python-build"]]
    again = images.build(fake_builder(tmp_path), chosen, made)
    outputs = tmp_path / "work" / "outputs"
    assert (list(again), len(outputs.read_text().splitlines())) == (["debian", "python-build", "gateway"], 3)
    shutil.rmtree(tmp_path / "out" / "images" / "debian")
    images.build(fake_builder(tmp_path), chosen, again)
    assert "/images/debian," in outputs.read_text().splitlines()[-1]


@pytest.mark.usefixtures("agreed")
def test_a_release_that_broke_goes_on_with_the_image_that_broke_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_builder(tmp_path)
    monkeypatch.setattr(command, "PARTS", {"images": (command._images, "the images")})
    monkeypatch.setattr(command, "_program", lambda *_: tmp_path / "buildctl")
    part = ["--version", "0.2.0", *BASE, "--out", str(tmp_path / "out"), "--image", "gateway", "--part", "images"]
    broken = tmp_path / "broken"
    broken.write_text("gateway")
    assert command.main(part) == 1
    broken.unlink()
    assert command.main(part) == 0
    outputs = (tmp_path / "out.work" / "outputs").read_text().splitlines()
    built = [line.partition("/images/")[2].partition(",")[0] for line in outputs]
    assert built == ["debian", "python-build", "gateway", "gateway"]
    assert command.main([*part, "--sbom-generator", "scanner@sha256:1"]) == 0
    assert len((tmp_path / "out.work" / "outputs").read_text().splitlines()) == 3


def test_a_build_that_breaks_ends_the_release_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(DevError, match="building debian: exit status 3") as caught:
        images.build(fake_builder(tmp_path, "BROKEN"), images.wanted(["gateway"]))
    assert caught.value.log == tmp_path / "work" / "debian.log"


# ── a base of one's own ──────────────────────────────────────────────────────────────────────────


def blob(folder: Path, content: bytes) -> str:
    """Writes it where a layout has it."""
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return f"sha256:{digest}"


def manifest(folder: Path, *, architecture: str = "amd64", command: str = "bash") -> dict[str, Any]:
    """The entry of an image of one layer."""
    config = {"architecture": architecture, "os": "linux", "config": {"Cmd": [command]}}
    told = {"config": {"digest": blob(folder, json.dumps(config).encode())}, "layers": [{"digest": blob(folder, b"x")}]}
    return {"digest": blob(folder, json.dumps(told).encode())}


def listing(folder: Path, entries: list[dict[str, Any]]) -> Path:
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"manifests": entries}))
    return folder


def layout(folder: Path, **more: str) -> Path:
    """A folder with one image."""
    return listing(folder, [manifest(folder, **more)])


def attested(folder: Path) -> Path:
    """A folder as BuildKit writes it: an index of the image and of what is attested of it."""
    statement_of = {"digest": "sha256:0", "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    both = {"manifests": [manifest(folder), statement_of]}
    return listing(folder, [{"digest": blob(folder, json.dumps(both).encode())}])


@pytest.mark.parametrize("made_by", [layout, attested])
def test_a_base_is_known_by_the_digest_that_its_layout_names(made_by: Callable[[Path], Path], tmp_path: Path) -> None:
    found = base.read(made_by(tmp_path))
    named = json.loads((tmp_path / "index.json").read_text())["manifests"][0]["digest"]
    assert found == base.Base(tmp_path, named, "linux/amd64")


def test_a_folder_that_is_no_oci_layout_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "lacking"):
        with pytest.raises(DevError, match="is no OCI layout: there is no file oci-layout"):
            base.read(folder)


def test_a_layout_of_several_images_or_platforms_is_refused_with_their_number(tmp_path: Path) -> None:
    several = [manifest(tmp_path), manifest(tmp_path, architecture="arm64")]
    listing(tmp_path, several)
    with pytest.raises(DevError, match="has 2 images"):
        base.read(tmp_path)
    listing(tmp_path, [{"digest": blob(tmp_path, json.dumps({"manifests": several}).encode())}])
    with pytest.raises(DevError, match="has 2 images"):
        base.read(tmp_path)
    listing(tmp_path, [])
    with pytest.raises(DevError, match="has 0 images"):
        base.read(tmp_path)


def test_a_layout_that_lacks_a_layer_is_refused(tmp_path: Path) -> None:
    layout(tmp_path)
    layer = hashlib.sha256(b"x").hexdigest()
    (tmp_path / "blobs" / "sha256" / layer).unlink()
    with pytest.raises(DevError, match=f"lacks sha256:{layer}"):
        base.read(tmp_path)


def test_a_layout_whose_manifest_is_not_what_its_digest_says_is_refused(tmp_path: Path) -> None:
    layout(tmp_path)
    named = json.loads((tmp_path / "index.json").read_text())["manifests"][0]["digest"]
    (tmp_path / "blobs" / "sha256" / named.removeprefix("sha256:")).write_text("{}")
    with pytest.raises(DevError, match=f"is not {named}"):
        base.read(tmp_path)


def test_a_layout_whose_files_are_no_json_is_refused(tmp_path: Path) -> None:
    layout(tmp_path)
    (tmp_path / "index.json").write_text("<html>")
    with pytest.raises(DevError, match="is no OCI layout"):
        base.read(tmp_path)


def test_images_stand_on_the_base_that_is_named_and_debian_is_not_built(tmp_path: Path) -> None:
    given = base.read(layout(tmp_path / "base"))
    made = images.build(fake_builder(tmp_path, given=given), images.wanted(["gateway"], without_base=True))
    assert list(made) == ["python-build", "gateway"]
    log = (tmp_path / "work" / "gateway.log").read_text()
    assert "--opt=build-arg:BASE_IMAGE=gymtrain/debian:dev" in log
    assert f"--opt=context:gymtrain/debian:dev=oci-layout://debian@{given.digest}" in log
    assert f"--oci-layout=debian={tmp_path}/base" in log


def test_pushed_images_stand_on_the_base_in_its_folder(tmp_path: Path) -> None:
    given = base.read(layout(tmp_path))
    told = command_of("operator", tmp_path, base=given)
    assert f"--opt=context:gymtrain/debian:dev=oci-layout://debian@{given.digest}" in told
    assert any(part.startswith("--opt=context:gymtrain/python-build:dev=docker-image://") for part in told)


def test_a_base_of_another_architecture_than_buildkits_is_refused(tmp_path: Path) -> None:
    given = base.read(layout(tmp_path / "base", architecture="arm64"))
    with pytest.raises(DevError, match=r"is for linux/arm64, .* builds for linux/amd64"):
        images.build(fake_builder(tmp_path, given=given), images.wanted(["gateway"], without_base=True))
    assert not (tmp_path / "work" / "outputs").exists()


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
    part = ["--version", "0.2.0", *BASE, "--out", str(out), "--part", "index"]
    assert command.main(part) == 0
    assert "images/debian/Dockerfile" in (out / index.PROVENANCE).read_text()
    assert command.main([*part, "--base", str(folder)]) == 0
    assert command.main(part) == 0
    assert json.loads((out / index.RELEASE).read_text())["base"] == base.read(folder).digest
    assert base.read(folder).digest.removeprefix("sha256:") in (out / index.PROVENANCE).read_text()
    assert "images/debian/Dockerfile" not in (out / index.PROVENANCE).read_text()
