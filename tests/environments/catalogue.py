"""The environments of the NeMo Gym that is installed: a folder of resources_servers each."""

from dataclasses import dataclass
from pathlib import Path

from gymtrain_gym.server import workspace

FOLDER = Path("resources_servers")


@dataclass(frozen=True)
class Environment:
    """One environment.

    Attributes:
        name: of its folder.
        config: that is tried, below NeMo Gym's root; None where none of its files has an agent.
        others: config files that are not tried.
    """

    name: str
    config: str | None
    others: tuple[str, ...] = ()


def environments() -> list[Environment]:
    """All of them, by name."""
    roots = workspace.roots()
    folders = {path for root in roots for path in (root / FOLDER).glob("*") if (path / "app.py").is_file()}
    return [_environment(folder) for folder in sorted(folders, key=lambda path: path.name)]


def _environment(folder: Path) -> Environment:
    """The config of the folder's own name is tried, else the first that has an agent."""
    files = sorted((folder / "configs").glob("*.yaml"), key=lambda file: (file.stem != folder.name, file.name))
    with_agent = [file for file in files if "responses_api_agents:" in file.read_text()]
    first = with_agent[0] if with_agent else None
    root = folder.parents[1]
    others = tuple(file.name for file in files if file != first)
    return Environment(folder.name, str(first.relative_to(root)) if first is not None else None, others)
