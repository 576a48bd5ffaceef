"""A release's images: in which order they are built, upon which base, and by what they are known."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.release import __main__ as command
from dev.release import base, images
from dev.report import DevError
from tests.support.release_parts import ADDRESSES, DIGESTS, attested, blob, layout, listing, manifest


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
    part = ["--version", "0.2.0", *ADDRESSES, "--out", str(tmp_path / "out"), "--image", "gateway", "--part", "images"]
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
