"""Building with a Docker engine."""

from pathlib import Path

import pytest

from dev.images.dockerfiles import Image
from dev.providers.kind import docker_build
from dev.settings import Settings

_DOCKER = """#!/bin/sh
cat > {folder}/stdin
printf '%s\\n' "$@" > {folder}/arguments
"""


def test_the_dockerfile_is_told_by_its_text_and_not_by_its_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(_DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM debian:trixie-slim\n")
    docker_build(Settings(cache=tmp_path / "cache"), Image("one", dockerfile, frozenset()))
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[arguments.index("-f") + 1] == "-"
    assert (tmp_path / "stdin").read_text() == dockerfile.read_text()
