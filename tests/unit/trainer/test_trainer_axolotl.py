"""Axolotl as the trainer of a run (examples/trainers/axolotl), on the CPU: its schema, model loader and trainer are
real, agents and vLLM are the conformance test's. Axolotl isn't in the lock. Installed from a folder outside the
repository, as its pyproject.toml would put another torch in:

    uv venv --python 3.12 VENV
    uv pip install --python VENV/bin/python -r REPOSITORY/examples/trainers/axolotl/requirements.txt

and then, in the repository:

    GYMTRAIN_AXOLOTL_PYTHON=VENV/bin/python pytest tests/unit/trainer/test_trainer_axolotl.py
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_conformance import pull
from gymtrain_conformance.checks import Verdict, outcomes
from gymtrain_conformance.main import table
from gymtrain_conformance.record import Ended, Update
from gymtrain_conformance.trial import run_trial
from tests.support.safetensors import Tensors, tensors
from tests.support.specs import smallest_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "trainers"
PYTHON = os.environ.get("GYMTRAIN_AXOLOTL_PYTHON")
SECONDS = 300.0  # of an attempt: Axolotl alone is imported in up to a minute, on two cores
STEPS, ROLLOUTS = 4, 8  # of a step

pytestmark = [
    pytest.mark.large,
    pytest.mark.timeout(3 * SECONDS),
    pytest.mark.skipif(PYTHON is None, reason="GYMTRAIN_AXOLOTL_PYTHON names no Python that has Axolotl"),
]


def test_axolotl_keeps_every_line_and_sends_what_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout fails for good, too: it has one try."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model, folder = tmp_path / "model", tmp_path / "trainer"
    subprocess.run([str(PYTHON), ROOT / "images" / "model-tiny" / "build.py", model], check=True)
    shutil.copytree(EXAMPLES / "axolotl", folder)
    shutil.copy(EXAMPLES / "minimal" / "contract.py", folder)
    config = {
        "learning_rate": 1e-4,
        "lr_scheduler": "constant",  # by default the first steps warm up, from 0
        "max_steps": STEPS,
        "micro_batch_size": ROLLOUTS,
        "save_steps": 1,
        # One group: of two, each could have equal rewards, by the order of threads, and the step would change nothing.
        "trl": {"num_generations": ROLLOUTS, "max_completion_length": 8},
    }
    trainer = {"image": "axolotl:1", "command": ["train.py"], "config": config, "checkpoint": {"size": "1Gi"}}
    rollout = {"maxStaleness": 0, "maxAttempts": 1}
    spec = GymTrainingRunSpec.model_validate(smallest_run(trainer=trainer, rollout=rollout)["spec"])
    pulled: list[Tensors] = []
    check = pull._check_safetensors

    def note(name: str, data: bytes) -> None:
        check(name, data)
        pulled.append(tensors(data))

    monkeypatch.setattr(pull, "_check_safetensors", note)
    trial = run_trial(spec, [str(PYTHON), str(folder / "train.py")], seconds=SECONDS, model=model)
    found = outcomes(trial)
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], f"{table(found)}\n{trial.log}"

    said = json.loads(trial.record.of(Ended)[-1].last_words)
    assert said["failed_rollouts"] == 1
    assert said["rollouts"] % ROLLOUTS == ROLLOUTS - 1

    labels = [update.label for update in trial.record.of(Update)]
    versions: dict[str, Tensors] = {}
    for label, sent in zip(labels, pulled, strict=True):
        assert versions.setdefault(label, sent) == sent  # a repair
    start = tensors((model / "model.safetensors").read_bytes())
    assert versions["conformance:1:1"] == start
    assert all(sent.keys() == start.keys() for sent in versions.values())
    later = [sent for label, sent in versions.items() if label.startswith("conformance:2:")]
    assert start not in later  # the second attempt begins at a checkpoint
    assert all(sent not in later[:number] for number, sent in enumerate(later))
