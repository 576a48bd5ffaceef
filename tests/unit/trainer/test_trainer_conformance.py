"""The wiring contract, line by line: gymtrain's own trainer keeps it, and the example with TRL's GRPOTrainer does."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_conformance.checks import Verdict, conforms, outcomes
from gymtrain_conformance.main import table
from gymtrain_conformance.trial import run_trial
from tests.support.specs import smallest_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "trainers"
SECONDS = 240.0  # of an attempt, beside other tests; alone some 20
CONFIG = {
    "learning_rate": 1e-4,
    "max_steps": 6,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8,
    "save_steps": 1,
}

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3 * SECONDS)]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _spec(**blocks: Any) -> GymTrainingRunSpec:
    trainer = {"config": CONFIG, "checkpoint": {"size": "1Gi"}, **blocks.pop("trainer", {})}
    return GymTrainingRunSpec.model_validate(smallest_run(trainer=trainer, **blocks)["spec"])


def test_gymtrains_trainer_keeps_every_line(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of a checkout, or of the trainer's image
    # The stand-in of vLLM computes nothing, so parity can't be what is tried here.
    spec = _spec(weightSync={"parityThreshold": "1000"})
    trial = run_trial(spec, [sys.executable, "-m", "gymtrain_trainer"], seconds=SECONDS, model=tiny_model)
    found = outcomes(trial)
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], f"{table(found)}\n{trial.log}"


@pytest.mark.large
def test_trls_grpo_trainer_keeps_every_line(tiny_model: Path, tmp_path: Path) -> None:
    for file in ("minimal/contract.py", "grpo/train.py"):
        shutil.copy(EXAMPLES / file, tmp_path)
    spec = _spec(trainer={"image": "grpo:1", "command": ["train.py"]}, rollout={"maxStaleness": 0})
    trial = run_trial(spec, [sys.executable, str(tmp_path / "train.py")], seconds=SECONDS, model=tiny_model)
    found = outcomes(trial)
    assert conforms(found, trial), f"{table(found)}\n{trial.log}"
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], f"{table(found)}\n{trial.log}"
