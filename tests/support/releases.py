"""The release before this one, as the repository's history has it."""

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from dev.images.dockerfiles import Image
from dev.providers.local import Local
from dev.settings import Settings

_ROOT = Path(__file__).parents[2]
LAST = "v0.1.0"
_COMMIT = "a0259ffbbc7495f1aab2a6a7c4f9055d1103e707"  # of that tag, which a clone may lack

_WITHOUT_SANDBOXES = ("operator", "gateway", "gym", "trainer", "inference")
_OWN_CODE = re.compile(r"^COPY ((?!--from)\S.*) (/opt/gymtrain/\S+)$", re.MULTILINE)


def last_release(folder: Path) -> Path:
    """Puts the last release's files into `folder`. A copy without that history, as a source archive is, skips the
    test."""
    for revision in (LAST, _COMMIT):
        done = subprocess.run(["git", "archive", revision], cwd=_ROOT, capture_output=True, check=False)
        if done.returncode == 0:
            with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="data")
            return folder
    pytest.skip(f"the history has neither {LAST} nor {_COMMIT}")


def build_last_images(folder: Path) -> None:
    """Builds the images of a run without sandboxes into the development cluster, with LAST as their tag, from the last
    release's files in `folder`.

    They have that release's own code. The libraries are those of today's images: built anew from its lock file, trainer
    and vLLM alone would take minutes and 6 GB.
    """
    images = []
    for name in _WITHOUT_SANDBOXES:
        copies = _OWN_CODE.findall((folder / "images" / name / "Dockerfile").read_text())
        assert copies, f"the Dockerfile of {LAST}'s {name} copies none of its code"
        dockerfile = folder / "over" / name / "Dockerfile"
        dockerfile.parent.mkdir(parents=True)
        lines = [f"FROM gymtrain/{name}:dev", "USER root", "RUN rm -rf /opt/gymtrain/gymtrain_*"]
        lines += [f"COPY {sources} {target}" for sources, target in copies]
        lines += ["RUN python -m compileall -q /opt/gymtrain && chmod -R a+rX /opt/gymtrain", "USER 65532:65532"]
        dockerfile.write_text("\n".join(lines) + "\n")
        images.append(Image(name, dockerfile, frozenset(), context=folder, version=LAST))
    Local(Settings()).build(images)
