"""`gymtrain init environment NAME`: an environment of one's own, from the template examples/environment."""

import re
import shutil
from pathlib import Path

from gymtrain_client.errors import ClientError

_TEMPLATE = "hidden_number"
_NAME = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$")
_NAME_LENGTH = 40  # of a run's name, too
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def template() -> Path:
    """Beside this package where the wheel is installed, else in the checkout."""
    packaged = Path(__file__).parents[1] / "gymtrain_environment_template"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "examples" / "environment"


def copy_environment(name: str, out: Path) -> list[Path]:
    """Writes the environment, by its name throughout; the files, in order.

    Args:
        name: of its resources server, such as hidden_number.
        out: a folder that isn't there yet.

    Raises:
        ClientError: the name can't be one, or the folder is there.
    """
    if not _NAME.match(name) or len(name) > _NAME_LENGTH:
        raise ClientError(
            f"{name!r} is no name for an environment: write words of small letters and digits with _ between them, "
            f"such as {_TEMPLATE}; at most {_NAME_LENGTH} characters"
        )
    if out.exists():
        raise ClientError(f"{out} is there already: choose another folder with --output")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(template(), partial, ignore=_LEFT_OUT)
        (partial / "resources_servers" / _TEMPLATE).rename(partial / "resources_servers" / name)
        for path in sorted(partial.rglob("*")):
            if path.is_file():
                path.write_text(_renamed(path.read_text(), name, out))
                path.rename(path.with_name(path.name.replace(_TEMPLATE, name)))
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _renamed(text: str, name: str, out: Path) -> str:
    """With the name as Python's modules, Python's classes, and Kubernetes' objects have it."""
    words = _TEMPLATE.split("_"), name.split("_")
    for spelled in (
        "_".join,
        "-".join,
        lambda parts: "".join(part.capitalize() for part in parts),
    ):
        text = text.replace(spelled(words[0]), spelled(words[1]))
    return text.replace("examples/environment", str(out))
