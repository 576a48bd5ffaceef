"""A whole training process with TRL: what train.py puts together, on a model of 0.1 M parameters.

The agent samples from a copy of the weights that the transport was given, as vLLM would.
"""

import errno
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from aiohttp import web  # noqa: E402

from gymtrain_trainer import train as train_module  # noqa: E402
from gymtrain_trainer.algorithm import checkpoints  # noqa: E402
from gymtrain_trainer.algorithm.checkpoints import last_checkpoint  # noqa: E402
from gymtrain_trainer.context import Context  # noqa: E402
from gymtrain_trainer.progress import ProgressBoard  # noqa: E402
from gymtrain_trainer.rollouts.guard import Versions  # noqa: E402
from gymtrain_trainer.stopping import StopSignal  # noqa: E402
from gymtrain_trainer.train import starting_board, train  # noqa: E402
from gymtrain_trainer.versions import SyncNumbers  # noqa: E402
from gymtrain_trainer.weights import SyncSettings, SyncStats, TransportNeeds, WeightStore  # noqa: E402
from tests.unit.trainer.test_trainer_entry import context  # noqa: E402
from tests.unit.trainer.test_trainer_trl import tiny_model  # noqa: E402, F401
from tests.unit.trainer.test_trainer_worker import AgentThread  # noqa: E402
from tests.unit.trainer.trainer_data import question, write_dataset, write_index  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = {
    "learning_rate": 1e-2,
    "max_steps": 4,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "save_steps": 2,
    "logging_steps": 1,
    "report_to": "none",
}


class VLLM:
    """What stands for transport and vLLM: holds the weights that it was sent, and samples."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.labels: list[str] = []
        self._turn = threading.Lock()  # weights change between two tokens, never within one
        self.stale_from: int | None = None  # from this sync on it keeps the old weights and says otherwise
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")

    def load(self, label: str, tensors: dict[str, Any]) -> None:
        self.labels.append(label)
        if self.stale_from is None or len(self.labels) < self.stale_from:
            with self._turn:
                self._model.load_state_dict(tensors, strict=False)
                self._model.tie_weights()

    def answer(self, row: dict[str, Any], number: int) -> web.Response:
        prompt = [3, 4, 5 + row["number"]]
        output: list[int] = []
        log_probs: list[float] = []
        with torch.no_grad():
            for _ in range(5):
                with self._turn:
                    scores = self._model(torch.tensor([prompt + output])).logits[0, -1].log_softmax(-1)
                output.append(int(torch.multinomial(scores.exp(), 1)))
                log_probs.append(float(scores[output[-1]]))
        item = {
            "type": "message",
            "content": [],
            "prompt_token_ids": prompt,
            "generation_token_ids": output,
            "generation_log_probs": log_probs,
        }
        reward = sum(token < 20 for token in output) / 5
        return web.json_response({"reward": reward, "response": {"output": [item]}})

    def transport(self, settings: SyncSettings, needs: TransportNeeds) -> "Transport":
        return Transport(settings, self)


class Transport:
    """Numbers and labels its syncs as the real ones do."""

    name = "HTTPFull"
    reason = "a test"
    wants_resend = False

    def __init__(self, settings: SyncSettings, vllm: VLLM) -> None:
        self.stats = SyncStats()
        self.current_version: str | None = None
        self._number = settings.start_number
        self._settings = settings
        self._vllm = vllm

    async def pod_versions(self) -> Versions:
        return {"http://vllm": self.current_version}

    def init_weight_transfer(self) -> None:
        """Nothing to find."""

    def pause(self) -> None:
        """Nothing to pause."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        tensors = {name: tensor.clone() for name, tensor in iterator}
        self._number += 1
        self.current_version = self._settings.version(self._number)
        self._vllm.load(self.current_version, tensors)

    def resume(self) -> None:
        """Nothing to resume."""

    def destroy(self) -> None:
        """Nothing to free."""


@pytest.fixture
def served() -> Iterator[AgentThread]:
    thread = AgentThread()
    yield thread
    thread.close()


@pytest.fixture
def process(
    tmp_path: Path,
    tiny_model: Path,  # noqa: F811
    served: AgentThread,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[VLLM, ProgressBoard, Context]]:
    """Runs one training process to its end."""
    monkeypatch.setenv("GYMTRAIN_CHECK_SAMPLES", "1")
    ready: Future[None] = Future()
    ready.set_result(None)
    monkeypatch.setattr(train_module, "start_waiting", lambda context, board: ready)

    def run(stale_from: int | None = None, **config: Any) -> tuple[VLLM, ProgressBoard, Context]:
        vllm = VLLM(tiny_model)
        vllm.stale_from = stale_from
        served.agent.behaviour = vllm.answer
        monkeypatch.setattr("gymtrain_trainer.lead.ChosenTransport", vllm.transport)
        made = context(tmp_path, trainer={"config": CONFIG | config, "checkpoint": {"claimName": "ck"}})
        made.paths.data_index.parent.mkdir(parents=True, exist_ok=True)
        if not made.paths.model.exists():
            made.paths.model.symlink_to(tiny_model)
        write_index(
            made.paths.data_index.parent,
            write_dataset(made.paths.data_index.parent, [question(number) for number in range(40)]),
        )
        agents = made.run.model_copy(update={"agents": {"adder": served.agent.url}})
        made = Context(agents, made.paths, made.attempt, made.nodes, made.node_rank, made.port)
        board = starting_board(made)
        train(made, board, WeightStore(tmp_path / "weights"), StopSignal())
        return vllm, board, made

    return run


def events(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"event"')]
    return [line for line in lines if line["event"] == event]


def test_a_run_trains_saves_and_no_sample_is_wrong(
    process: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    vllm, board, made = process()
    progress = board.snapshot()
    assert (progress.step, progress.rollouts >= 32, progress.weight_version) == (4, True, vllm.labels[-1])
    assert [alarm.reason for alarm in progress.alarms if alarm.reason != "KLHigh"] == []  # the learning rate is huge
    assert board.numbers()["kl"] >= 0.0
    checkpoint = last_checkpoint(made.run_folder, made.run.uid)
    assert checkpoint is not None
    assert checkpoint.state.step == 4
    (total,) = events(capsys, "sample_check_total")
    assert total["samples"] >= 32
    assert (total["wrong"], total["unchecked"]) == (0, 0)


def test_weights_that_do_not_arrive_are_found_by_the_checker(
    process: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    process(stale_from=2)
    (total,) = events(capsys, "sample_check_total")
    assert total["wrong"] > 0


def test_a_process_that_goes_on_with_an_attempt_uses_labels_of_its_own(process: Callable[..., Any]) -> None:
    first, _, made = process(max_steps=2)
    used = SyncNumbers(made.run_folder, made.attempt).last()
    second, board, _ = process(max_steps=4)
    assert board.snapshot().step == 4
    assert not set(first.labels) & set(second.labels)
    assert int(second.labels[0].rpartition(":")[2]) == used + 1


def test_a_full_disk_at_a_checkpoint_costs_that_checkpoint_alone(
    process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoints.write_state

    def full(folder: Path, state: Any) -> None:
        if state.step == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "gymtrain.json"))
        real(folder, state)

    monkeypatch.setattr("gymtrain_trainer.algorithm.saving.write_state", full)
    _, board, made = process()
    assert board.snapshot().step == 4
    (alarm,) = [alarm for alarm in board.snapshot().alarms if alarm.reason == "CheckpointFailed"]
    assert "PersistentVolumeClaim ck" in alarm.message
    found = last_checkpoint(made.run_folder, made.run.uid)
    assert found is not None
    assert found.state.step == 2

    monkeypatch.setattr("gymtrain_trainer.algorithm.saving.write_state", real)
    _, board, _ = process(max_steps=6)
    assert board.snapshot().step == 6
    assert "CheckpointFailed" not in [alarm.reason for alarm in board.snapshot().alarms]
