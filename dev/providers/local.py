"""The cluster that this package itself starts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from dev.cluster import containerd
from dev.cluster.down import down
from dev.cluster.up import up
from dev.images import buildkit
from dev.images.dockerfiles import Image, discover, select
from dev.images.order import build_all
from dev.images.secrets import build_secrets
from dev.lock import exclusive
from dev.report import DevError, say
from dev.settings import Settings


class Local:
    """Kubernetes as processes of this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def up(self, names: Sequence[str] = ()) -> None:
        """Start it, repair it, or see that it works; with the named images, built beside what the cluster waits for."""
        images = select(discover(), names) if names else []
        with exclusive(self._settings):
            up(self._settings, functools.partial(self._build, images) if images else None)

    def down(self) -> None:
        """Remove everything but the cache."""
        with exclusive(self._settings):
            down(self._settings)

    def kubeconfig(self) -> Path:
        """The administrator's."""
        if not self._settings.kubeconfig.exists():
            raise DevError("there is no cluster", fix="dev/run cluster-up")
        return self._settings.kubeconfig

    def images(self, names: Sequence[str]) -> None:
        """Build into the kubelet's own store; a broken one does not hold up the rest."""
        images = select(discover(), names)
        if not images:
            raise DevError("there is no images/*/Dockerfile")
        self.build(images)

    def build(self, images: list[Image]) -> None:
        """The same with images that are not of this repository's folders."""
        with exclusive(self._settings):
            buildkit.start(self._settings)
        self._build(images)

    def _build(self, images: list[Image]) -> None:
        """With buildkitd running."""
        if told := buildkit.little_room(self._settings):
            say(told)
        with build_secrets() as secrets:
            failed = build_all(images, lambda image: buildkit.build(self._settings, image, secrets))
        containerd.forget_untagged(self._settings)
        say(f"{len(images) - len(failed)} of {len(images)} images are ready")
        if failed:
            what = "\n".join(error.render() for error in failed.values()).removeprefix("error: ")
            raise DevError(what, fix=buildkit.little_room(self._settings))
