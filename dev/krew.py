"""The plugin for krew, kubectl's plugin manager: an archive for each platform, and the manifest that names them.

    python -m dev.krew --base-url https://downloads.example.com/v0.1.0 --homepage https://example.com/gymtrain
                       [--platform linux-amd64 ...] [--out dist]

An archive holds the wheel of the command line with all that it needs, as the lock file pins it, and a script that
starts it with the user's Python 3.13: krew unpacks archives, and installs neither Python nor packages. The parts that
are compiled differ by platform, so archives do. Whoever makes them again from the same commit gets the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BIN = "kubectl-gymtrain"
# By krew's os and arch, what uv calls the platform. krew has Windows, too, where a plugin has to be a .exe.
PLATFORMS: Mapping[str, str] = {
    "linux-amd64": "x86_64-manylinux_2_28",
    "linux-arm64": "aarch64-manylinux_2_28",
    "darwin-amd64": "x86_64-apple-darwin",
    "darwin-arm64": "aarch64-apple-darwin",
}
_SECONDS = 900

# krew links to it, so it looks where the link leads. -I: packages and variables of the user's own Python stay out.
_START = """\
#!/bin/sh
file=$0
while [ -L "$file" ]; do
    target=$(readlink "$file")
    case $target in
    /*) file=$target ;;
    *) file=$(dirname "$file")/$target ;;
    esac
done
if ! command -v python3.13 >/dev/null 2>&1; then
    echo "error: kubectl gymtrain needs Python 3.13, and there is no python3.13 on the PATH: install it" >&2
    exit 2
fi
exec python3.13 -I "$(dirname "$file")/start.py" "$@"
"""
_START_PYTHON = f"""\
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here / "lib"))
sys.argv[0] = str(here / "{BIN}")
sys.dont_write_bytecode = True

from gymtrain_cli.main import main

sys.exit(main())
"""


class KrewError(Exception):
    """An archive can't be made."""


def version() -> str:
    """Of the project."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def archive_name(platform: str) -> str:
    """Of a platform's archive."""
    return f"{BIN}-{version()}-{platform}.tar.gz"


def manifest(base_url: str, homepage: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """krew's manifest.

    Args:
        base_url: of the folder that the archives are downloaded from.
        homepage: of the project.
        digests: SHA-256 of each platform's archive.
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gymtrain"},
        "spec": {
            "version": f"v{version()}",
            "homepage": homepage,
            "shortDescription": "Write, check and watch RL post-training runs",
            "description": (
                "Writes GymTrainingRuns from NeMo Gym's configs, has the cluster check them, and shows, suspends, "
                "resumes and fetches what they do. The cluster needs the gymtrain operator.\n"
            ),
            "caveats": "It needs Python 3.13: python3.13 on the PATH.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": dict(zip(("os", "arch"), platform.split("-"), strict=True))},
                    "uri": f"{base_url.rstrip('/')}/{archive_name(platform)}",
                    "sha256": digest,
                    "bin": BIN,
                }
                for platform, digest in digests.items()
            ],
        },
    }


def packed(folder: Path) -> bytes:
    """A tar.gz of a folder; the same bytes whenever its files are the same."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            entry.mode = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
            if path.is_file():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return content.getvalue()


def build_wheel(uv: str, folder: Path) -> Path:
    """The wheel of the command line, made in `folder` with what dev/build-requirements.txt names by hash.

    Raises:
        KrewError: it can't be built.
    """
    pins = ("--build-constraints", str(ROOT / "dev" / "build-requirements.txt"), "--require-hashes")
    _run(
        [
            uv,
            "build",
            "--quiet",
            "--wheel",
            "--no-create-gitignore",
            *pins,
            "--python",
            sys.executable,
            "--out-dir",
            str(folder),
            str(ROOT),
        ]
    )
    (wheel,) = folder.glob(f"gymtrain-{version()}-*.whl")
    return wheel


def make(uv: str, wheel: Path, constraints: Path, platform: str) -> bytes:
    """The archive of a platform.

    Raises:
        KrewError: a package has no compiled form for it, or can't be had.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(
            [
                *(uv, "pip", "install", "--quiet", "--target", str(folder / "lib"), "--python", sys.executable),
                *("--python-platform", PLATFORMS[platform], "--python-version", "3.13", "--only-binary", ":all:"),
                *("--link-mode", "copy", "--constraint", str(constraints), f"{wheel}[cli]"),
            ]
        )
        shutil.rmtree(folder / "lib" / "bin", ignore_errors=True)  # scripts, which name this machine's Python
        for record in (folder / "lib").glob("*.dist-info/RECORD"):
            record.unlink()  # names those scripts with their digests
        for own in ("direct_url.json", "uv_cache.json", "INSTALLER", "REQUESTED"):  # where and when they were made
            for path in (folder / "lib").glob(f"*.dist-info/{own}"):
                path.unlink()
        (folder / "lib" / ".lock").unlink(missing_ok=True)
        (folder / "start.py").write_text(_START_PYTHON)
        (folder / BIN).write_text(_START)
        (folder / BIN).chmod(0o755)
        shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
        return packed(folder)


def build(base_url: str, homepage: str, platforms: Sequence[str], out: Path) -> Path:
    """Writes archives and manifest. Returns the manifest's path.

    Raises:
        KrewError: an archive can't be made.
    """
    uv = _run([str(ROOT / "dev" / "uv.sh")]).strip()
    out.mkdir(parents=True, exist_ok=True)
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheel = build_wheel(uv, place)
        pins = _run(
            [
                *(uv, "export", "--quiet", "--project", str(ROOT), "--locked", "--no-hashes", "--no-emit-project"),
                *("--no-annotate", "--no-header", "--python", sys.executable, "--extra", "cli", "--no-dev"),
            ]
        )
        constraints = place / "constraints.txt"
        constraints.write_text(pins)
        for platform in platforms:
            content = make(uv, wheel, constraints, platform)
            (out / archive_name(platform)).write_bytes(content)
            digests[platform] = hashlib.sha256(content).hexdigest()
    path = out / "gymtrain.yaml"
    path.write_text(yaml.safe_dump(manifest(base_url, homepage, digests), sort_keys=False))
    return path


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise KrewError(f"{' '.join(command[:3])} …: {done.stderr.strip()}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Builds what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m dev.krew", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base-url", required=True, help="of the folder that the archives will be downloaded from")
    parser.add_argument("--homepage", required=True, help="URL of the project's page, which krew shows")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="only this one; may be given again")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archives and gymtrain.yaml")
    arguments = parser.parse_args(argv)
    for option, url in (("--base-url", arguments.base_url), ("--homepage", arguments.homepage)):
        if not url.startswith("https://"):
            parser.error(f"{option}: {url!r} doesn't begin with https://")
    try:
        path = build(arguments.base_url, arguments.homepage, arguments.platform or list(PLATFORMS), arguments.out)
    except KrewError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{path}: for {', '.join(arguments.platform or PLATFORMS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
