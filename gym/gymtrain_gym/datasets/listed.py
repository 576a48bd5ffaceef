"""The datasets that the Gym config itself lists, under `datasets` of its agents, and what they make of spec.data.

`fromGym` stands for such datasets: each becomes a dataset of its own, with the file that the config names and the agent
that lists it. The same list says which agent the rows of a `gym://` or `hf://` file are for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gymtrain_api.sources import GymPath, HubDataset, parse_data_source
from gymtrain_api.spec import Dataset, DatasetType, FromGym, ValidationDataset
from gymtrain_api.wiring import source_folder
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.server import workspace

_AGENTS = "responses_api_agents"
_MAX_WEIGHT = 1000  # of spec.data: the draw order holds a list of so many places a dataset


@dataclass(frozen=True)
class Listed:
    """One entry of an agent's `datasets`."""

    agent: str
    key: str  # config key, such as my_agent.responses_api_agents.simple_agent.datasets[0]
    type: str
    path: str  # as the config has it
    repeats: int = 1
    hub: str = ""  # where upstream would download it: ORG/NAME on the Hugging Face hub
    hub_file: str = ""  # which file there; without one, the split of its type


@dataclass(frozen=True)
class Entry:
    """One file to prepare."""

    where: str  # field of the spec
    folder: str  # below the folder of sources, where its volume is mounted
    stem: str  # of the names of its own files
    dataset: ValidationDataset
    prepared: Path | None = None  # file that upstream's preparation made for `fromGym`


def listed_datasets(config: DictConfig) -> list[Listed]:
    """All datasets that the agents of a resolved config list, by agent: a run that resumes counts on their order."""
    return [entry for name in sorted(map(str, config)) for entry in _of_server(name, config[name])]


def _of_server(name: str, server: Any) -> Iterator[Listed]:
    if not isinstance(server, DictConfig) or not isinstance(server.get(_AGENTS), DictConfig):
        return
    for implementation, settings in server[_AGENTS].items():
        datasets: Any = settings.get("datasets") if isinstance(settings, DictConfig) else None
        for place in range(len(datasets or [])):
            key = f"{name}.{_AGENTS}.{implementation}.datasets[{place}]"
            try:
                dataset: Any = OmegaConf.to_container(datasets[place], resolve=True)
            except OmegaConfBaseException:  # a variable that only servers have; nothing that a path needs
                continue
            hub = dataset.get("huggingface_identifier") or dataset.get("source") or {}
            yield Listed(
                name,
                key,
                str(dataset.get("type")),
                str(dataset.get("jsonl_fpath")),
                int(dataset.get("num_repeats") or 1),
                str(hub.get("repo_id") or ""),
                str(hub.get("artifact_fpath") or ""),
            )


def entries(
    datasets: Sequence[ValidationDataset],
    field: str,
    default_type: DatasetType,
    listed: Sequence[Listed],
    findings: Findings,
    prepared: Path | None = None,
) -> list[Entry]:
    """What the datasets of one list of the spec are, file by file.

    Args:
        datasets: the list.
        field: the list's field, such as spec.data.train.
        default_type: what `fromGym` means where it names no types.
        listed: what the Gym config lists.
        findings: what `fromGym` can't find is added here.
        prepared: folder with what upstream's preparation made, where the spec asks for it.
    """
    found = []
    use = field.rpartition(".")[2]
    for number, dataset in enumerate(datasets):
        where, stem, folder = f"{field}[{number}]", f"{use}-{number}", source_folder(f"{use}[{number}]")
        if dataset.from_gym is None:
            found.append(Entry(where, folder, stem, _with_agent(dataset, listed)))
            continue
        if prepared is not None:
            for kind in sorted(set(dataset.from_gym.types or [default_type])):
                file = prepared / f"{kind}.jsonl"
                if file.exists():
                    found.append(Entry(where, folder, f"{stem}-{kind}", dataset, file))
                    continue
                there = nearest(kind, {file.stem for file in prepared.glob("*.jsonl")})
                findings.add(f"{where}.fromGym", f"data.prepare made no {kind} dataset: {there}. See its mode")
            continue
        chosen = _chosen(dataset.from_gym, f"{where}.fromGym", default_type, listed, findings)
        for place, one in enumerate(chosen):
            if made := _as_dataset(one, dataset, findings):
                found.append(Entry(where, folder, f"{stem}-{place}", made))
    return found


def _chosen(
    choice: FromGym, where: str, default_type: DatasetType, listed: Sequence[Listed], findings: Findings
) -> list[Listed]:
    types = set(choice.types or [default_type])
    agents = {one.agent for one in listed}
    for agent in choice.agents or []:
        if agent not in agents:
            hint = nearest(agent, agents)
            findings.add(f"{where}.agents", f"names no agent of the Gym config that lists datasets, {agent!r}: {hint}")
    of_agents = [one for one in listed if choice.agents is None or one.agent in choice.agents]
    chosen = [one for one in of_agents if one.type in types]
    if not chosen and (choice.agents is None or agents.intersection(choice.agents)):
        there = ", ".join(sorted({f"{one.type} ({one.agent})" for one in of_agents})) or "none"
        findings.add(
            where,
            f"the Gym config lists no datasets of type {' or '.join(sorted(types))}; it lists {there}. Set types, or "
            "name a source in spec.data",
        )
    return chosen


def _as_dataset(one: Listed, wanted: ValidationDataset, findings: Findings) -> ValidationDataset | None:
    """The listed dataset as the spec would have it; None, with a finding, where its file isn't in the image."""
    roots = workspace.roots()
    path = Path(one.path)
    found = workspace.find(path, roots)  # an absolute path stays what it is
    inside = found and next((root for root in roots if found.resolve().is_relative_to(root.resolve())), None)
    where = f"config key {one.key}.jsonl_fpath"
    if found is None:
        hub = f"It is hf://{one.hub} on the Hugging Face hub. " if one.hub else ""
        findings.add(
            where,
            f"the Gym image has no {one.path}, the {one.type} dataset of {one.agent}. {hub}Let spec.data.prepare "
            "download it (shouldDownload: true), add the file to the image, or name another source in spec.data; for a "
            "first try, fromGym: {types: [example]} uses the few rows that NeMo Gym ships",
        )
    elif inside is None:
        findings.add(where, f"{one.path} leads out of {' and '.join(map(str, roots))}")
    elif isinstance(wanted, Dataset) and wanted.weight * one.repeats > _MAX_WEIGHT:
        findings.add(
            f"config key {one.key}.num_repeats",
            f"{one.repeats} times weight {wanted.weight} is more than {_MAX_WEIGHT}: lower either",
        )
    else:
        relative = found.relative_to(next(root for root in roots if found.is_relative_to(root)))
        source = f"gym://{relative}"
        if isinstance(wanted, Dataset):
            return Dataset(source=source, agent=one.agent, weight=wanted.weight * one.repeats)
        return ValidationDataset(source=source, agent=one.agent)
    return None


def _with_agent[D: ValidationDataset](dataset: D, listed: Sequence[Listed]) -> D:
    """The dataset with the agent that lists its file, where it names none and one agent does."""
    source = parse_data_source(dataset.source) if dataset.source and dataset.agent is None else None
    match source:
        case GymPath(path):
            agents = {one.agent for one in listed if Path(one.path) == Path(path)}
        case HubDataset(repo_id=repo, path=path):
            agents = {one.agent for one in listed if (one.hub, one.hub_file or one.type) == (repo, path)}
        case _:
            return dataset
    return dataset.model_copy(update={"agent": agents.pop()}) if len(agents) == 1 else dataset
