"""The chart, as helm renders it."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.apiserver import binary

CHART = Path(__file__).parents[2] / "charts" / "gymtrain"

type Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, whether or not it succeeds."""
    return subprocess.run([binary("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False)


def render(*sets: str, namespace: str = "system", release: str = "gymtrain", chart: Path = CHART) -> list[Manifest]:
    """All manifests of a release, with values such as `replicas=2`."""
    values = [argument for value in ("imageRegistry=r.example.com/", *sets) for argument in ("--set", value)]
    done = helm("template", release, str(chart), "--namespace", namespace, "--kube-version", "1.34", *values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]
