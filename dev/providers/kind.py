"""kind, where a Docker engine and the kind command are there.

`docker_build` was run with Docker 20.10 for all images; a kind cluster was never started.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dev.images.dockerfiles import Image, discover, select
from dev.images.secrets import build_secrets
from dev.report import DevError, say, step
from dev.settings import NAME, REPOSITORY, Settings
from dev.shell import run, run_logged


class Kind:
    """One kind cluster of our name. NetworkPolicy is enforced by kindnet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def up(self) -> None:
        """Create it unless it is there."""
        if NAME in run(["kind", "get", "clusters"]).stdout.split():
            say(f"the kind cluster {NAME} is there already")
        else:
            self._settings.cache.mkdir(parents=True, exist_ok=True)
            log = self._settings.cache / "logs" / "kind.log"
            with step(f"creating the kind cluster {NAME}"):
                argv = ["kind", "create", "cluster", f"--name={NAME}", "--wait=120s"]
                run_logged(
                    [*argv, f"--kubeconfig={self.kubeconfig()}"], log=log, deadline=600, what="kind create cluster"
                )

    def down(self) -> None:
        """Delete it, with its kubeconfig."""
        run(["kind", "delete", "cluster", f"--name={NAME}"], deadline=120)
        self.kubeconfig().unlink(missing_ok=True)

    def kubeconfig(self) -> Path:
        """In the cache: there is no state folder."""
        return self._settings.cache / "kind.kubeconfig"

    def images(self, names: Sequence[str]) -> None:
        """Build with Docker, then copy each image to the node."""
        images = select(discover(), names)
        if not images:
            raise DevError("there is no images/*/Dockerfile")
        for image in images:
            docker_build(self._settings, image)
            run(["kind", "load", "docker-image", image.tag, f"--name={NAME}"], deadline=1800)


def docker_build(settings: Settings, image: Image) -> None:
    """One image, with the same secrets as BuildKit gets elsewhere.

    The Dockerfile goes in by standard input: Docker before 23 takes a file of the same size and time for the same file
    (moby/buildkit#1368), as those of our tasks are in a fresh checkout, and builds one task's image for all.
    """
    started = time.monotonic()
    log = settings.cache / "logs" / f"image-{image.name}.log"
    with build_secrets() as secrets:
        argv: list[str | Path] = ["docker", "build", "--progress=plain", "-t", image.tag, "-f", "-"]
        argv += [f"--build-arg={name}={value}" for name, value in image.arguments.items()]
        argv += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        what = f"building {image.tag}"
        say(f"{what} …")
        run_logged(
            [*argv, REPOSITORY], log=log, deadline=3600, what=what, env={"DOCKER_BUILDKIT": "1"}, stdin=image.dockerfile
        )
        say(f"{what}: {time.monotonic() - started:.1f} s")
