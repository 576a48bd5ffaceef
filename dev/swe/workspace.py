"""Folders that stand for a task's image: the same scripts fill them, at other places.

Commands name /testbed and /opt/miniconda3; here both are below a temporary folder, so the names are replaced in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dev.report import DevError
from dev.swe.tasks import FOLDER, Release

_MAKE_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """As mini_swe_agent_2 puts both together."""
        return "\n".join(part for part in (self.stdout, self.stderr) if part)


class Workspace:
    """One environment, and one task's code at a time."""

    def __init__(self, folder: Path) -> None:
        """Makes the environment below `folder`."""
        self.conda, self.testbed, self._home = folder / "conda", folder / "testbed", folder / "home"
        self._home.mkdir(parents=True)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "python3").symlink_to(sys.executable)
        self._path = f"{tools}:{os.environ['PATH']}"
        self._script("environment.sh", self.conda, FOLDER / "base" / "requirements.txt")

    def checkout(self, package: str, release: Release) -> Path:
        """The release's code, as the image of a task has it."""
        shutil.rmtree(self.testbed, ignore_errors=True)
        self._script("task.sh", self.conda, self.testbed, f"{package}=={release.version}", release.sha256)
        return self.testbed

    def run(self, command: str, cwd: str = "/testbed", seconds: float = 600, env: dict[str, str] | None = None) -> Done:
        """Runs a shell command of the image."""
        done = subprocess.run(  # noqa: S602 - a task's own script
            self.translated(command),
            shell=True,
            executable="bash",
            cwd=self.translated(cwd),
            env={**self.environment(), **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def translated(self, text: str) -> str:
        """`text` with the places of the image replaced by those here."""
        return text.replace("/opt/miniconda3", str(self.conda)).replace("/testbed", str(self.testbed))

    def environment(self) -> dict[str, str]:
        """What a command sees, and nothing of the caller's."""
        path = f"{self.conda / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self._home), "PYTHONDONTWRITEBYTECODE": "1"}

    def _script(self, name: str, *arguments: str | Path) -> None:
        keep = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        done = subprocess.run(
            [FOLDER / "base" / name, *arguments],
            env={**keep, "PATH": self._path, "HOME": str(self._home)},
            capture_output=True,
            text=True,
            timeout=_MAKE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise DevError(
                f"{name} {' '.join(map(str, arguments))} failed: {done.stderr[-2000:] or done.stdout[-2000:]}"
            )
