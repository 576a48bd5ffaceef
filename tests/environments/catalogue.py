"""The environments of the NeMo Gym that is installed: a folder of resources_servers each."""

from dataclasses import dataclass
from pathlib import Path

from gymtrain_gym.server import workspace

FOLDER = Path("resources_servers")


AGENTS = Path("responses_api_agents")
_AN_AGENT = "responses_api_agents:"


@dataclass(frozen=True)
class Environment:
    """One environment.

    Attributes:
        name: of its folder.
        configs: files that are tried together, below NeMo Gym's root; none where no file has an agent for it.
        others: config files that are not tried.
    """

    name: str
    configs: tuple[str, ...]
    others: tuple[str, ...] = ()


def environments() -> list[Environment]:
    """All of them, by name."""
    roots = workspace.roots()
    folders = {path for root in roots for path in (root / FOLDER).glob("*") if (path / "app.py").is_file()}
    return [environment(folder) for folder in sorted(folders, key=lambda path: path.name)]


def environment(folder: Path) -> Environment:
    """The config of the folder's own name is tried, else the first that has an agent. Where none has, an agent's own
    config that names the environment goes with it.
    """
    root = folder.parents[1]
    files = sorted((folder / "configs").glob("*.yaml"), key=lambda file: (file.stem != folder.name, file.name))
    tried = [file for file in files if _AN_AGENT in file.read_text()][:1]
    if not tried and files:
        agents = sorted((root / AGENTS).glob(f"*/configs/*{folder.name}*.yaml"))
        tried = [files[0], agents[0]] if agents else []
    others = tuple(file.name for file in files if file not in tried)
    return Environment(folder.name, tuple(str(file.relative_to(root)) for file in tried), others)
