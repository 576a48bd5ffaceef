"""`python -m gymtrain_gym.prepare`: runs NeMo Gym's data preparation (ng_prepare_data) on the run's Gym config.

The init container `prepare-data` of the preflight pod, for spec.data.prepare. Upstream's own function downloads,
validates and collates what the config's agents list; what it writes to its output_dirpath (one JSONL file of each type,
with metrics) becomes the folder `prepared` of the volume. It gets the resolved config as Gym servers do, by
NEMO_GYM_CONFIG_DICT, with the four settings that its command line would add; the token stays in its variable.

It writes to its working directory and reads from there first: a folder of the volume, with links to the datasets that
an image has beside NeMo Gym's.
"""

import hashlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gymtrain_api.runs import parse_run_config
from gymtrain_api.spec import Prepare
from gymtrain_api.wiring import ENV_DATA_TOKEN, FETCHED_DIR, RUN_CONFIG_FILE, RunConfig
from gymtrain_gym.errors import DatasetError
from gymtrain_gym.fetch import EX_CONFIG, say_why

_OUTPUT = "output"
_NOTE = "prepared.json"


def prepare(run: RunConfig, folder: Path) -> None:
    """Fills `folder`/prepared, unless it is there from the same inputs.

    Raises:
        DatasetError: the Gym config can't be resolved, or upstream refuses to go on.
    """
    settings = run.spec.data.prepare
    assert settings is not None
    work, made, note = folder / "prepare.partial", folder / "prepared", folder / _NOTE
    # Read when huggingface_hub and NeMo Gym are imported: what they cache is as large as the data.
    os.environ.update(HF_HOME=str(work / "hub"), HF_DATASETS_CACHE=str(work / "hub/datasets"))
    config = _config(run)
    listed = _listed(config)
    inputs = _digest(settings, listed)
    if note.exists() and made.is_dir() and json.loads(note.read_bytes()).get("inputs") == inputs:
        print(f"{made} is already there", flush=True)
        return
    note.unlink(missing_ok=True)
    for old in (work, made):
        shutil.rmtree(old, ignore_errors=True)
    work.mkdir(parents=True)
    _link(listed, work)
    _run_upstream(config, settings, work)
    os.replace(work / _OUTPUT, made)
    shutil.rmtree(work, ignore_errors=True)
    note.write_text(json.dumps({"inputs": inputs, "mode": settings.mode}))


def _config(run: RunConfig) -> Any:
    from gymtrain_gym.config import resolve
    from gymtrain_gym.config.findings import Findings

    findings, sandboxes = Findings(), run.spec.sandboxes
    config = resolve.resolve(
        run.spec.gym,
        run.gateway_url,
        findings,
        has_sandboxes=sandboxes is not None,
        root_sandboxes=sandboxes is not None and sandboxes.root,
    )
    if config is None:
        raise DatasetError("; ".join(f"{finding.where}: {finding.message}" for finding in findings.items))
    return config


def _listed(config: Any) -> list[Any]:
    from gymtrain_gym.datasets.listed import listed_datasets

    return listed_datasets(config)


def _digest(settings: Prepare, listed: list[Any]) -> str:
    from importlib.metadata import version

    what = [settings.model_dump_json(exclude={"token_secret"}), version("nemo-gym"), *map(repr, listed)]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()


def _link(listed: list[Any], work: Path) -> None:
    """Links the datasets that an image has in its working directory into the one that upstream gets."""
    here = Path.cwd()
    for one in listed:
        path = Path(one.path)
        if not path.is_absolute() and (here / path).is_file() and (work / path).resolve().is_relative_to(work):
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            if not (work / path).exists():
                (work / path).symlink_to(here / path)


def _run_upstream(config: Any, settings: Prepare, work: Path) -> None:
    from nemo_gym.global_config import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, get_global_config_dict
    from omegaconf import OmegaConf

    token = f"${{oc.env:{ENV_DATA_TOKEN}}}" if settings.token_secret else None
    added: dict[str, Any] = {
        "output_dirpath": _OUTPUT,
        "mode": settings.mode,
        "should_download": settings.should_download,
        "data_source": settings.data_source,
    }
    if settings.gitlab_uri:
        added |= {"mlflow_tracking_uri": settings.gitlab_uri, "mlflow_tracking_token": token}
    elif token:
        added["hf_token"] = token
    os.environ[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME] = OmegaConf.to_yaml(OmegaConf.merge(config, added))
    get_global_config_dict()  # parsed once and cached: programs that upstream starts needn't get the variable
    del os.environ[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME]
    before = Path.cwd()
    os.chdir(work)
    try:
        from nemo_gym.cli.dataset import prepare_data

        prepare_data()
    except Exception as error:
        traceback.print_exc()
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise DatasetError(f"NeMo Gym's data preparation ended with {text[:2000]}") from error
    finally:
        os.chdir(before)
    if not any((work / _OUTPUT).glob("*.jsonl")):
        raise DatasetError(f"the Gym config lists no datasets that mode {settings.mode} prepares")


def main(run_file: Path = Path(RUN_CONFIG_FILE), folder: Path = Path(FETCHED_DIR)) -> int:
    """Reads run.json and prepares its data."""
    try:
        run = parse_run_config(run_file.read_bytes())
    except (OSError, ValidationError) as error:
        say_why(f"{run_file} can't be used: {error}")
        return EX_CONFIG
    try:
        prepare(run, folder)
    except DatasetError as error:
        say_why(f"spec.data.prepare: {error}")
        return EX_CONFIG
    except OSError as error:
        say_why(f"spec.data.prepare: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
