"""helm as the tests use it, with a deadline for each command."""

import subprocess
from pathlib import Path

from tests.support.apiserver import binary
from tests.support.chart import CHART
from tests.support.images import REGISTRY, TAG


class Helm:
    """helm in one namespace."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._base = [binary("helm"), "--kubeconfig", kubeconfig, "--namespace", namespace]

    def run(self, *arguments: str) -> str:
        """Standard output of one command, which has to succeed."""
        done = subprocess.run([*self._base, *arguments], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def upgrade(self, release: str, *values: str, chart: Path = CHART, registry: str = REGISTRY, tag: str = TAG) -> str:
        """`helm upgrade --install` with images of that tag, and the operator is ready."""
        images = (f"imageRegistry={registry}", f"image.tag={tag}", f"images.tag={tag}")
        sets = [argument for value in (*images, *values) for argument in ("--set", value)]
        return self.run("upgrade", "--install", release, str(chart), *sets, "--wait", "--timeout", "180s")
