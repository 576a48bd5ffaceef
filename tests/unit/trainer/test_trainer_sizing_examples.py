"""Examples with GPUs fit the GPUs that they name, and TRL takes their settings."""

from pathlib import Path

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.sizing.command import fits
from gymtrain_trainer.sizing.runs import read_run, sizing_of
from gymtrain_trainer.sizing.training import gpu
from tests.support.pages import yaml_blocks

ROOT = Path(__file__).parents[3]
EXAMPLES = {path.stem: read_run(path) for path in sorted((ROOT / "examples").glob("*.yaml"))}
ON_GPUS = [name for name, run in EXAMPLES.items() if run.trainer.gpus]
# GiB of a GPU of 80 GB, unless the example's comments name another: 141 GB (an H200).
MEMORY = {"workplace-assistant": 139.0, "workplace-assistant-full": 139.0}


@pytest.mark.parametrize("name", ON_GPUS)
def test_an_example_fits_its_gpus(name: str) -> None:
    assert fits(sizing_of(EXAMPLES[name], None, MEMORY.get(name, 80)))


def test_examples_that_need_other_gpus_say_so() -> None:
    assert [name for name in MEMORY if "141 GB" not in (ROOT / "examples" / f"{name}.yaml").read_text()] == []


def test_the_four_nodes_hold_their_model() -> None:
    sizing = sizing_of(EXAMPLES["slurm-4-nodes"], None, 80)
    assert (sizing.training.processes, sizing.training.shape.name) == (32, "Qwen3-4B")
    assert gpu(sizing.training).fits


def test_the_readmes_run_fits_the_gpu_that_it_names() -> None:
    (block,) = yaml_blocks("README.md")
    assert "H200" in block
    assert fits(sizing_of(GymTrainingRunSpec.model_validate(yaml.safe_load(block)["spec"]), None, 139))


@pytest.mark.torch
@pytest.mark.parametrize("name", ON_GPUS)
def test_trl_takes_the_settings_of_an_example(name: str) -> None:
    from gymtrain_trainer.trl.config_checks import check_config

    assert check_config(EXAMPLES[name]) == []
