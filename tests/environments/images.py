"""The Gym images' packages, each in an environment of its own: what an image would import, without building it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Image:
    """One of images/.

    Attributes:
        name: its folder.
        extras: of pyproject.toml, which it installs.
    """

    name: str
    extras: tuple[str, ...]

    @property
    def environment(self) -> Path:
        """Where its packages are installed."""
        return ROOT / f".venv-image-{self.name}"


GYM = Image("gym", ("gym",))
IMAGES = (GYM, Image("gym-environments", ("gym", "gym-environments")))
"""An environment is tried in each until one has its packages."""


def python(image: Image) -> str:
    """An interpreter that imports what the image's does, and nothing else that isn't Python's.

    Raises:
        subprocess.CalledProcessError: the packages can't be installed.
    """
    uv = subprocess.run([ROOT / "dev" / "uv.sh"], capture_output=True, text=True, check=True).stdout.strip()
    command = [uv, "sync", "--quiet", "--locked", "--no-default-groups", "--no-install-project"]
    command += [f"--extra={extra}" for extra in image.extras]
    command += ["--python", getattr(sys, "_base_executable", sys.executable)]  # not the one of a venv
    subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(image.environment)},
        check=True,
    )
    return str(image.environment / "bin" / "python")
