"""verl as the trainer of a run (examples/trainers/verl), on the CPU: main_ppo, Ray and FSDP2 are real, agents and vLLM
are the conformance test's. verl isn't in the lock, and wants a Python before 3.13. Installed from a folder outside the
repository, as its pyproject.toml would put another torch in:

    uv venv --python 3.12 VENV
    uv pip install --python VENV/bin/python -r REPOSITORY/examples/trainers/verl/requirements.txt

and then, in the repository:

    GYMTRAIN_VERL_PYTHON=VENV/bin/python pytest tests/unit/trainer/test_trainer_verl.py
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_conformance import pull
from gymtrain_conformance.checks import Verdict, outcomes
from gymtrain_conformance.main import table
from gymtrain_conformance.record import Ended
from gymtrain_conformance.trial import Trial, run_trial
from tests.support.safetensors import Tensors, tensors
from tests.support.specs import smallest_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "trainers"
PYTHON = os.environ.get("GYMTRAIN_VERL_PYTHON")
SECONDS = 300.0  # of an attempt: Ray's processes import torch, on two cores in a minute
STEPS, ROWS = 4, 4

pytestmark = [
    pytest.mark.large,
    pytest.mark.timeout(3 * SECONDS),
    pytest.mark.skipif(PYTHON is None, reason="GYMTRAIN_VERL_PYTHON names no Python that has verl"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verl") / "model"
    subprocess.run([str(PYTHON), ROOT / "images" / "model-tiny" / "build.py", folder], check=True)
    return folder


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[Tensors]:
    """What vLLM's stand-in fetched, in its order."""
    found: list[Tensors] = []
    check = pull._check_safetensors

    def note(name: str, data: bytes) -> None:
        check(name, data)
        found.append(tensors(data))

    monkeypatch.setattr(pull, "_check_safetensors", note)
    return found


def _try(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, *, group: int, max_attempts: int) -> Trial:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for file in [EXAMPLES / "minimal" / "contract.py", *(EXAMPLES / "verl").iterdir()]:
        shutil.copy(file, folder)
    config = {
        "data": {"train_batch_size": ROWS, "max_response_length": 8},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": ROWS, "optim": {"lr": 1e-4}},
            "rollout": {"n": group},
        },
        "trainer": {"total_training_steps": STEPS, "save_freq": 1},
    }
    trainer = {"image": "verl:1", "command": ["train.py"], "config": config, "checkpoint": {"size": "1Gi"}}
    rollout = {"maxStaleness": 0, "maxAttempts": max_attempts}
    spec = GymTrainingRunSpec.model_validate(smallest_run(trainer=trainer, rollout=rollout)["spec"])
    trial = run_trial(spec, [str(PYTHON), str(folder / "train.py")], seconds=SECONDS, model=model)
    found = outcomes(trial)
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], f"{table(found)}\n{trial.log}"
    return trial


def _last_words(trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(trial.record.of(Ended)[-1].last_words)
    return found


def test_verl_keeps_every_line_and_sends_what_it_trained(
    model: Path, pulled: list[Tensors], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _try(tmp_path, model, monkeypatch, group=4, max_attempts=3)
    start = tensors((model / "model.safetensors").read_bytes())
    untrained, first_step, resumed, repaired, *later = pulled
    assert untrained == start
    assert first_step.keys() == start.keys()
    assert first_step != untrained
    assert resumed == repaired == first_step  # of the checkpoint that the first attempt left
    assert len(later) == STEPS - 1
    assert len({json.dumps({name: data.hex() for name, data in one.items()}) for one in [first_step, *later]}) == STEPS


def test_a_rollout_that_failed_for_good_is_left_out_of_its_group(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = _try(tmp_path, model, monkeypatch, group=4, max_attempts=1)
    said = _last_words(trial)
    assert said["failed_rollouts"] == 1
    assert said["rollouts"] == (STEPS - 1) * ROWS * 4 - 1  # of the second attempt


def test_a_group_without_any_rollout_is_replaced(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = _try(tmp_path, model, monkeypatch, group=1, max_attempts=1)
    assert _last_words(trial)["rollouts"] == (STEPS - 1) * ROWS
    assert "training/rollout_failure/evicted_samples:1" in trial.log
