"""Checks a run's Gym config and datasets before any other pod exists: the `gym` container of the preflight pod.

Prints PREFLIGHT_MARK and a GymPreflight on one line, and exits with 0 whenever it could.
"""

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from omegaconf import OmegaConf
from pydantic import ValidationError

from gymtrain_api.runs import parse_run_config
from gymtrain_api.wiring import DATA_DIR, PREFLIGHT_MARK, RUN_CONFIG_FILE, DataIndex, GymPreflight, RunConfig
from gymtrain_gym.config import resolve, servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.datasets import preparation
from gymtrain_gym.datasets.generated import warn_of_shared_rows
from gymtrain_gym.datasets.listed import listed_datasets
from gymtrain_gym.datasets.preparation import Folders
from gymtrain_gym.datasets.rows import AgentDirectory, Policy, responses_schema


def check(run: RunConfig, folders: Folders) -> GymPreflight:
    """The verdict on a run. An unexpected exception becomes a finding too."""
    started = time.monotonic()
    findings = Findings()
    verdict = GymPreflight()
    where = "spec.gym"
    try:
        sandboxes = run.spec.sandboxes
        config = resolve.resolve(
            run.spec.gym,
            run.gateway_url,
            findings,
            has_sandboxes=sandboxes is not None,
            root_sandboxes=sandboxes is not None and sandboxes.root,
        )
        if config is not None:
            infos = servers.describe(config, run.spec.gym, findings)
            where = "spec.data"
            index = preparation.prepare(
                run.spec.used_data,
                AgentDirectory.of(infos),
                listed_datasets(config),
                folders,
                findings,
                responses_schema(),
                sample=True,
                policy=Policy.of(run.spec),
            )
            warn_of_shared_rows(run.spec.used_data, findings)
            if run.spec.rollout.mode == "Verify":
                servers.check_mode_verify(OmegaConf.to_container(config), infos, index, findings)
            verdict = GymPreflight(
                config=OmegaConf.to_container(config),  # interpolations stay as they are
                servers=infos,
                data=DataIndex() if findings else index,
            )
    except Exception as error:
        traceback.print_exc()
        findings.add(where, f"preflight stopped at {type(error).__name__}: {error}")
    seconds = round(time.monotonic() - started, 3)
    return verdict.model_copy(update={"findings": findings.items, "warnings": findings.warnings, "seconds": seconds})


def main(run_file: Path = Path(RUN_CONFIG_FILE)) -> int:
    """Reads run.json, checks it and prints the verdict."""
    try:
        run = parse_run_config(run_file.read_bytes())
    except (OSError, ValidationError) as error:
        print(f"gymtrain: {run_file} can't be used: {error}", file=sys.stderr, flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="gymtrain-") as scratch:
        data = Path(DATA_DIR)
        verdict = check(run, Folders(data=data if os.access(data, os.W_OK) else Path(scratch)))
    for finding in [*verdict.findings, *verdict.warnings]:
        print(f"{finding.where}: {finding.message}", file=sys.stderr)
    # Libraries may have left the line unfinished.
    print(f"\n{PREFLIGHT_MARK}{verdict.model_dump_json()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
