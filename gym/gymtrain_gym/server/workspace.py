"""A writable twin of a server's folder, and the process state that upstream's CLI sets up.

Upstream starts a server with its folder as working directory and on PYTHONPATH. Servers read files
beside them by relative paths (judge prompts, tables) and write caches and logs there, which a
read-only image forbids. So the folder is rebuilt in the scratch volume: real folders, and a link for each
file.
"""

import os
import sys
from pathlib import Path

from gymtrain_gym.errors import ConfigFileError


def roots() -> list[Path]:
    """Where server folders and config files are looked for, as upstream does: the working directory
    (environments added to an image), then NeMo Gym's installation."""
    import nemo_gym

    return [Path.cwd(), nemo_gym.PARENT_DIR]


def find(relative: Path, search: list[Path]) -> Path | None:
    """The first of `search` that has `relative`, as an absolute path."""
    return next((root / relative for root in search if (root / relative).exists()), None)


def is_inside(path: Path, search: list[Path]) -> bool:
    """Whether `path` stays in one of `search`, wherever its symbolic links and its `..` lead; it needn't exist."""
    places = [root.resolve() for root in search]
    found = find(path, search)
    candidates = [found] if found is not None else [root / path for root in search]
    return any(candidate.resolve().is_relative_to(place) for candidate in candidates for place in places)


def mirror(source: Path, target: Path) -> Path:
    """Rebuilds the folder `source` at `target` with links to its files; files written there stay."""
    for folder, subfolders, files in os.walk(source):
        subfolders[:] = [name for name in subfolders if name not in ("__pycache__", "tests", ".venv")]
        twin = target / Path(folder).relative_to(source)
        twin.mkdir(parents=True, exist_ok=True)
        for name in files:
            link = twin / name
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(Path(folder, name).absolute())
    return target


def enter(folder: Path) -> None:
    """Makes `folder` the working directory and the first place for imports, here and in children; the working
    directory until now, where an image may have environments of its own, becomes the second."""
    places = [str(folder), str(Path.cwd())]
    os.chdir(folder)
    sys.path[:0] = places
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([inherited] if inherited else [])])


def server_folder(relative: Path, entrypoint: str, search: list[Path]) -> Path:
    """The folder of a server's code. A folder of the same name that an image adds for data alone doesn't hide it.

    Raises:
        ConfigFileError: no folder of that name, or no entrypoint in it.
    """
    folder = next((root / relative for root in search if (root / relative / entrypoint).is_file()), None)
    folder = folder or find(relative, search)
    places = " and ".join(str(root) for root in search)
    if folder is None:
        raise ConfigFileError(f"no server code in {relative}: looked in {places}")
    if not (folder / entrypoint).is_file():
        raise ConfigFileError(f"{folder} has no {entrypoint}, the entrypoint that the config names")
    return folder
