"""Prepares the datasets of a run for the trainer: its `data` init container.

Exits with 0 once /gymtrain/data/index.json is written, 78 (EX_CONFIG) when a dataset can't be used.
"""

import sys
import time
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from gymtrain_api.runs import parse_run_config
from gymtrain_api.wiring import GYM_CONFIG_FILE, RUN_CONFIG_FILE, RunConfig
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.datasets import preparation
from gymtrain_gym.datasets.listed import Listed, listed_datasets
from gymtrain_gym.datasets.preparation import Folders
from gymtrain_gym.datasets.rows import AgentDirectory

EX_CONFIG = 78


def prepare(run: RunConfig, folders: Folders, gym_config: Path = Path(GYM_CONFIG_FILE)) -> Findings:
    """Writes the data folder. Preflight has checked each request, so only what the index needs is read here."""
    findings = Findings()
    agents, listed = _agents(run), _listed(run, gym_config)
    index = preparation.prepare(run.spec.used_data, agents, listed, folders, findings, schema=None, sample=False)
    if not findings:
        preparation.write_index(index, folders)
        for file in (*index.train, *index.validation):
            print(f"{file.file}: {file.rows} rows, agents {file.agents}", flush=True)
    return findings


def _listed(run: RunConfig, gym_config: Path) -> list[Listed]:
    """What the Gym config lists, read only where a dataset depends on it."""
    datasets = [dataset for _, dataset in run.spec.used_data.placed()]
    if not any(
        (d.from_gym and not run.spec.data.prepare) or (not d.agent and (d.source or "").startswith(("gym://", "hf://")))
        for d in datasets
    ):
        return []
    config = OmegaConf.create(yaml.safe_load(gym_config.read_bytes()))
    assert isinstance(config, DictConfig)
    return listed_datasets(config)


def _agents(run: RunConfig) -> AgentDirectory:
    """The agents of the run. Only where a generated dataset leaves its agent open, the Gym config has to tell."""
    names = frozenset(run.agents) | frozenset(run.verifiers)  # in mode Verify no agent has a URL
    if len(names) == 1 or (names and all(d.agent or not d.reasoning_gym for _, d in run.spec.used_data.placed())):
        return AgentDirectory(names, reasoning_gym=names)
    from gymtrain_gym.config import resolve, servers

    said_before = Findings()  # preflight reported them
    config = resolve.resolve(run.spec.gym, run.gateway_url, said_before)
    if config is None:
        return AgentDirectory(names, reasoning_gym=names)
    return AgentDirectory.of(servers.describe(config, run.spec.gym, said_before))


def main(
    run_file: Path = Path(RUN_CONFIG_FILE),
    folders: Folders | None = None,
    gym_config: Path = Path(GYM_CONFIG_FILE),
) -> int:
    """Reads run.json and prepares its datasets."""
    started = time.monotonic()
    try:
        run = parse_run_config(run_file.read_bytes())
    except (OSError, ValidationError) as error:
        print(f"gymtrain: {run_file} can't be used: {error}", file=sys.stderr, flush=True)
        return EX_CONFIG
    try:
        findings = prepare(run, folders or Folders(), gym_config)
    except (OSError, yaml.YAMLError) as error:
        print(f"gymtrain: {gym_config} can't be used: {error}", file=sys.stderr, flush=True)
        return EX_CONFIG
    for finding in findings.items:
        print(f"gymtrain: {finding.where}: {finding.message}", file=sys.stderr, flush=True)
    if not findings:
        print(f"data is ready after {time.monotonic() - started:.1f} s", flush=True)
    return EX_CONFIG if findings else 0


if __name__ == "__main__":
    sys.exit(main())
