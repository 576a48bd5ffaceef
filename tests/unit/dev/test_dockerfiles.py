import re
from pathlib import Path

import pytest

from dev.images.dockerfiles import discover, select
from dev.report import DevError
from dev.settings import REPOSITORY
from tests.support.imports import imported


def images(folder: Path, **dockerfiles: str) -> Path:
    for name, text in dockerfiles.items():
        (folder / name).mkdir()
        (folder / name / "Dockerfile").write_text(text)
    return folder


def test_an_image_comes_after_those_it_names(tmp_path: Path) -> None:
    images(
        tmp_path,
        a="ARG BASE=gymtrain/c:dev\nFROM ${BASE}\n",
        b="FROM debian:trixie-slim\nCOPY --from=gymtrain/a:dev /x /x\n",
        c="FROM debian:trixie-slim\n# like gymtrain/b:dev\n",
        d="FROM debian:trixie-slim\nRUN --mount=type=bind,\\\n    from=gymtrain/b:dev,target=/b true\n",
    )

    assert [image.name for image in discover(tmp_path)] == ["c", "a", "b", "d"]


def test_no_image_has_its_own_way_to_install() -> None:
    """images/python-build has uv and knows where the package index is; the others use it."""
    texts = {image.name: image.dockerfile.read_text() for image in discover(REPOSITORY / "images")}
    assert [name for name, text in texts.items() if re.search(r"(?<!uv )pip install", text)] == ["python-build"]
    assert [name for name, text in texts.items() if "cat /run/secrets" in text] == ["python-build"]


def sources(dockerfile: Path) -> set[str]:
    """Paths of the build's context that it reads."""
    text = dockerfile.read_text().replace("\\\n", " ")
    found: set[str] = set()
    for line in text.splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            found.update(word for word in line.split()[1:-1] if not word.startswith("--"))
        for mount in re.findall(r"--mount=(type=bind\S*)", line):
            options = dict(one.partition("=")[::2] for one in mount.split(","))
            if "from" not in options:
                found.add(options["source"])
    return found


def test_what_images_read_is_there_and_not_ignored() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = tuple(line.removeprefix("!") for line in lines if line.startswith("!"))
    assert "*" in lines
    read = {(image.name, source) for image in discover() for source in sources(image.dockerfile)}
    assert len(read) > 30
    hidden = {(name, one) for name, one in read if not any(f"{one}/".startswith(f"{part}/") for part in allowed)}
    assert hidden == set(), "see .dockerignore"
    assert {(name, one) for name, one in read if not list(REPOSITORY.glob(one))} == set()


def test_the_tests_of_the_trainers_image_import_only_what_it_has() -> None:
    copied = sources(REPOSITORY / "images/trainer-tests/Dockerfile")
    tests = sorted(
        one for folder in copied for one in REPOSITORY.glob(f"{folder}/**/*.py") if folder.startswith("tests/unit")
    )
    assert len(tests) > 50
    lacking = {
        f"{test.relative_to(REPOSITORY)}: {name}"
        for test in tests
        for name in imported(test)
        if name.split(".")[0] in ("benchmarks", "dev", "tests")
        if not any(f"{name.replace('.', '/')}/".startswith(f"{one.removesuffix('.py')}/") for one in copied)
    }
    assert lacking == set(), "see images/trainer-tests/Dockerfile"


def test_naming_some_images_builds_what_they_need_too(tmp_path: Path) -> None:
    found = discover(images(tmp_path, a="FROM gymtrain/b:dev", b="FROM scratch", c="FROM scratch"))

    assert [image.name for image in select(found, ["a"])] == ["b", "a"]
    assert select(found, []) == found


@pytest.mark.parametrize(
    ("dockerfiles", "message"),
    [
        ({"a": "FROM gymtrain/b:dev", "b": "FROM gymtrain/a:dev"}, "in a circle"),
        ({"a": "FROM gymtrain/gone:dev"}, "gymtrain/gone:dev"),
    ],
)
def test_an_impossible_order_is_refused(tmp_path: Path, dockerfiles: dict[str, str], message: str) -> None:
    with pytest.raises(DevError, match=message):
        discover(images(tmp_path, **dockerfiles))


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DevError) as caught:
        select(discover(images(tmp_path, a="FROM scratch")), ["b"])

    assert "one of: a" in caught.value.render()
