"""Two training processes in one group: what one rank does alone and what all do together.

On the CPU, or on two GPUs where there are two; with a model that both have, and with one that is sharded. Parity is
checked after each sync.
"""

import csv
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from gymtrain_api.wiring import ExitCode  # noqa: E402
from gymtrain_trainer.checkpoints.folder import last_checkpoint  # noqa: E402
from tests.unit.trainer import trainer_fork  # noqa: E402
from tests.unit.trainer.trainer_vllm import make_context  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
SECONDS = 200  # for both
GPUS = 2 if torch.cuda.device_count() >= 2 else 0
SAME = 0.05 if GPUS else 0.001  # |difference| of log-probabilities; on GPUs the trainer computes in bfloat16
PARITY = {"parityEverySyncs": 1, "parityThreshold": str(SAME)}
LORA: dict[str, Any] = {"source": "pvc://models/tiny", "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}
SHARDED: dict[str, Any] = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}}
WAYS = [
    pytest.param({}, id="replicated"),
    pytest.param(SHARDED, id="sharded"),
]


def run_ranks(
    module: str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    processes: int = 2,
    fork: bool = not GPUS,
) -> list[int]:
    """Runs processes of a module beside this one, with torchrun's environment, to their end; the exit codes.

    `fork`: they have the libraries imported, without the environment.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),  # pytest's own, by pyproject.toml
    }
    shared |= environment or {}
    own = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    module = f"tests.unit.trainer.{module}"
    if fork:
        return trainer_fork.run(module, arguments, own, SECONDS)
    ranks = [subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT, env=one) for one in own]
    try:
        return [rank.wait(SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def train_ranks(
    folder: Path,
    model: Path,
    spec: dict[str, Any],
    environment: dict[str, str] | None = None,
    *,
    processes: int = 2,
    **config: Any,
) -> Any:
    """Trains with all; the exit codes and the last checkpoint."""
    trainer = {"processesPerNode": processes, "gpus": GPUS} | spec.get("trainer", {})
    spec = spec | {"trainer": trainer, "weightSync": PARITY}
    made = make_context(folder, model, "http://127.0.0.1:9", spec, per_device_train_batch_size=4, **config)
    codes = run_ranks("trainer_rank", str(folder), environment=environment, processes=processes)
    return codes, last_checkpoint(made.run_folder, made.run.uid)


@pytest.fixture(params=WAYS)
def train(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Path) -> Callable[..., Any]:
    """Runs both processes, each way: see `train_ranks`."""
    return partial(train_ranks, tmp_path, tiny_model, **request.param)


def test_two_processes_train_all_weights(train: Callable[..., Any], tmp_path: Path) -> None:
    codes, checkpoint = train({})
    assert (codes, checkpoint.state.step) == ([0, 0], 4)
    assert float((tmp_path / "parity").read_text()) < SAME
    codes, checkpoint = train({}, max_steps=6)
    assert (codes, checkpoint.state.step) == ([0, 0], 6), "it goes on from the checkpoint"


def test_the_samples_that_both_processes_trained_are_recorded(train: Callable[..., Any], tmp_path: Path) -> None:
    records = {"samples": "All", "format": "JSONL"}
    codes, _ = train({"trainer": {"records": records}, "rollout": {"maxStaleness": 0}}, max_steps=2)
    assert codes == [0, 0]
    files = sorted((tmp_path / "checkpoints" / "records").glob("step-*"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 8
    assert {row["staleness"] for row in rows} == {0}
    assert [row["ratio"] for row in rows] == pytest.approx([1.0] * 16, abs=SAME)
    for group in {row["group"] for row in rows}:
        advantages = [row["advantage"] for row in rows if row["group"] == group]
        assert sum(advantages) == pytest.approx(0.0, abs=1e-6)


def test_two_processes_train_an_adapter(train: Callable[..., Any], tmp_path: Path) -> None:
    codes, checkpoint = train({"model": LORA})
    assert (codes, checkpoint.state.step) == ([0, 0], 4)
    assert float((tmp_path / "parity").read_text()) < SAME


def test_vllm_that_computes_with_other_weights_ends_both_processes(train: Callable[..., Any], tmp_path: Path) -> None:
    codes, checkpoint = train({}, {"VLLM_LOSES": "layers.1.mlp.up_proj"}, max_steps=2)
    assert (codes, checkpoint) == ([ExitCode.REFUSED, ExitCode.REFUSED], None)


def test_a_signal_within_a_sync_at_one_of_two_processes_ends_both_with_the_steps_checkpoint(
    train: Callable[..., Any],
) -> None:
    codes, checkpoint = train({}, {"TERM_AT_SYNC": "3"}, max_steps=20, save_steps=100)
    assert (codes, checkpoint.state.step) == ([75, 75], 3)


def test_a_signal_while_one_of_two_processes_awaits_rollouts_ends_both_with_a_checkpoint(
    train: Callable[..., Any],
) -> None:
    codes, checkpoint = train({}, {"TERM_AFTER_GROUPS": "7"}, max_steps=20, save_steps=100)
    # 3.5 steps' groups. They end in any order: all of the first six rows but one, maybe.
    place = checkpoint.state.place
    assert (codes, checkpoint.state.step) == ([75, 75], 3)
    assert place.first_open + len(place.done) == 6


def evaluated(folder: Path) -> list[int]:
    """The steps, by evaluations.csv."""
    rows = csv.DictReader((folder / "checkpoints" / "evaluations.csv").read_text().splitlines())
    return [int(row["step"]) for row in rows if row["environment"] == "(all)" and row["failed"] == "0"]


def test_rank_0_evaluates_and_sigterm_meanwhile_ends_both_at_a_steps_end(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    task = {"reasoningGym": {"task": "chain_sum", "size": 4}}
    spec = {"data": {"train": [task], "validation": [task]}, "evaluation": {"everySteps": 2}}
    codes, checkpoint = train(spec, {"TERM_AT_EVALUATION": "3"})
    assert codes == [75, 75]
    assert checkpoint.state.step in (2, 3)
    assert evaluated(tmp_path) == [0]
    codes, checkpoint = train(spec)
    assert (codes, checkpoint.state.step) == ([0, 0], 4)
    steps = evaluated(tmp_path)
    assert (steps[0], steps[1] in (2, 3), steps[2:]) == (0, True, [4])
    assert (tmp_path / "checkpoints" / "best" / "gymtrain.json").exists()
