"""Runs that evaluate without training: real weights of real checkpoints, and what stands for vLLM."""

import asyncio
import csv
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from aiohttp import web  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from gymtrain_trainer.checkpoints.folder import WorkerState, write_state  # noqa: E402
from gymtrain_trainer.errors import InterruptedBySignal, ResumeError, SettingsError  # noqa: E402
from gymtrain_trainer.monitoring.evaluation_scores import ALL  # noqa: E402
from gymtrain_trainer.stopping import StopSignal  # noqa: E402
from gymtrain_trainer.trl import evaluator  # noqa: E402
from gymtrain_trainer.trl.whole_weights import read_weights, whole_weights  # noqa: E402
from gymtrain_trainer.weights import WeightParityError  # noqa: E402
from gymtrain_trainer.weights.parity.check import LogProbs, model_logprobs  # noqa: E402
from tests.unit.trainer.trainer_agent import AgentThread, good_answer  # noqa: E402
from tests.unit.trainer.trainer_data import question, write_dataset, write_index  # noqa: E402
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process  # noqa: E402

pytestmark = pytest.mark.torch

EARLIER = "earlier"


class Scene:
    """One attempt after the other of a run, and the run whose checkpoints it evaluates."""

    def __init__(self, folder: Path, model: Path, served: AgentThread, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.model = model
        self.agent = served.agent
        self._patch = patch
        self.vllm = VLLM(model)
        self.asked: list[tuple[int, int]] = []  # row, and how many versions had come
        self.on_asked: Callable[[], None] = lambda: None
        self.agent.behaviour = self._answer

    async def _answer(self, row: dict[str, Any], number: int) -> web.Response:
        self.asked.append((row["number"], len(self.vllm.labels)))
        await asyncio.to_thread(self.on_asked)
        return good_answer(row, len(self.vllm.labels) / 10)

    def checkpoint(self, step: int, make: Callable[[Path], None]) -> Path:
        """A whole checkpoint of the earlier run, with what `make` writes."""
        folder = self.folder / "resume" / EARLIER / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        make(folder)
        write_state(folder, WorkerState(step=step, position=step, attempt=1))
        return folder

    def run(self, stop: StopSignal | None = None, **without_training: str) -> list[tuple[int, float]]:
        """One attempt to its end; step and reward of each evaluation in the file."""
        spec: dict[str, Any] = {
            "data": {"validation": [{"reasoningGym": {"task": "chain_sum", "size": 4}}]},
            "evaluation": {"withoutTraining": without_training, "samplesPerTask": 2},
        }
        context = make_context(self.folder, self.model, self.agent.url, spec)
        data = context.paths.data_index.parent
        write_index(data, validation=[write_dataset(data, [question(n) for n in range(1000, 1004)], name="held-out")])
        board = run_process(context, self.vllm, stop or StopSignal(), self._patch.setattr)
        assert board is not None
        self.progress = board.snapshot()
        file = (context.run_folder / "evaluations.csv").read_text().splitlines()
        return [(int(row["step"]), float(row["reward"])) for row in csv.DictReader(file) if row["environment"] == ALL]


@pytest.fixture
def scene(tmp_path: Path, tiny_model: Path, served: AgentThread, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, tiny_model, served, monkeypatch)


def all_weights(model: Path, by: float) -> Callable[[Path], None]:
    """A checkpoint as one process writes it: the weights of `model`, and `by` more."""

    def make(folder: Path) -> None:
        for file in model.iterdir():
            shutil.copy(file, folder)
        weights = {name: tensor + by for name, tensor in load_file(model / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return make


def adapter(model: Path) -> Callable[[Path], None]:
    """A checkpoint of an adapter that changes something."""

    def make(folder: Path) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(model)
        trained = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        trained.save_pretrained(folder)

    return make


def shards(model: Path, by: float) -> Callable[[Path], None]:
    """A checkpoint in shards, as accelerate writes it."""

    def make(folder: Path) -> None:
        from torch.distributed import checkpoint
        from transformers import AutoModelForCausalLM

        weights = AutoModelForCausalLM.from_pretrained(model).state_dict()
        state = {"model": {name: tensor + by for name, tensor in weights.items()}}
        checkpoint.save(
            state, storage_writer=checkpoint.FileSystemWriter(folder / "pytorch_model_fsdp_0"), no_dist=True
        )
        shutil.copy(model / "config.json", folder)

    return make


def held(scene: Scene) -> dict[str, Any]:
    """What vLLM has now."""
    scene.vllm.keep(scene.folder / "held.safetensors")
    weights: dict[str, Any] = load_file(scene.folder / "held.safetensors")
    return weights


def test_the_model_of_the_spec_is_evaluated_as_its_files_have_it(scene: Scene) -> None:
    before = held(scene)
    scene.vllm.lose("q_proj")  # what vLLM had at first doesn't count
    scene.vllm._lost = ""
    scene.vllm.serve()
    assert scene.run() == [(0, 0.1)]
    assert sorted(scene.asked) == [(number, 1) for number in range(1000, 1004) for _ in range(2)]
    after = held(scene)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert scene.progress.parity == pytest.approx(0, abs=1e-4), "the parity check ran"
    assert (scene.progress.validation_reward, scene.progress.best_step) == (0.1, 0)
    assert not (scene.folder / "checkpoints" / "model").exists(), "nothing was trained"


def test_all_checkpoints_of_a_run_are_evaluated_in_their_order(scene: Scene) -> None:
    for step, by in ((20, 0.2), (3, 0.1)):
        scene.checkpoint(step, all_weights(scene.model, by))
    assert scene.run(checkpointsOf=EARLIER) == [(3, 0.1), (20, 0.2)]
    assert [versions for _, versions in scene.asked] == [1] * 8 + [2] * 8, "one weight version a score"
    weights = load_file(scene.model / "model.safetensors")
    assert torch.equal(held(scene)["model.norm.weight"], weights["model.norm.weight"] + 0.2)
    assert (scene.progress.step, scene.progress.max_steps, scene.progress.best_step) == (20, 20, 20)


def test_one_checkpoint_is_evaluated_where_the_run_names_it(scene: Scene) -> None:
    for step in (3, 20):
        scene.checkpoint(step, all_weights(scene.model, 0.1))
    assert scene.run(checkpointsOf=f"{EARLIER}/checkpoint-3") == [(3, 0.1)]


def test_an_attempt_goes_on_with_the_checkpoint_that_has_no_row(scene: Scene) -> None:
    for step in (1, 2, 3):
        scene.checkpoint(step, all_weights(scene.model, step / 10))
    stop = StopSignal()

    def interrupt() -> None:
        if len(scene.vllm.labels) == 2:
            stop.requested = True
            time.sleep(2)

    scene.on_asked = interrupt
    with pytest.raises(InterruptedBySignal):
        scene.run(stop, checkpointsOf=EARLIER)
    scene.on_asked = lambda: None
    scene.asked.clear()
    assert [step for step, _ in scene.run(checkpointsOf=EARLIER)] == [1, 2, 3]
    assert len(scene.asked) == 16, "the first one's score was there"


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(scene: Scene) -> None:
    scene.checkpoint(3, all_weights(scene.model, 0.1))
    with pytest.raises(ResumeError, match=r"checkpointsOf: no whole checkpoint-4 in .* there are earlier/checkpoint-3"):
        scene.run(checkpointsOf=f"{EARLIER}/checkpoint-4")


def test_a_vllm_that_computes_something_else_ends_the_run(scene: Scene) -> None:
    scene.vllm.lose("embed_tokens")
    scene.vllm.serve()
    with pytest.raises(WeightParityError):
        scene.run()


@pytest.mark.parametrize(("said", "compared"), [("float32", torch.float32), (None, torch.bfloat16)])
def test_what_vllm_computes_is_compared_with_a_model_of_its_type(
    said: str | None, compared: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The type of the files is another: their rounding would be taken for weights that are missing."""
    halved = scene.folder / "halved"
    AutoModelForCausalLM.from_pretrained(scene.model).to(torch.bfloat16).save_pretrained(halved)
    AutoTokenizer.from_pretrained(scene.model).save_pretrained(halved)
    scene.model, scene.vllm = halved, VLLM(halved)
    scene.vllm.dtype = said
    scene.vllm.serve()
    types = []

    def noted(model: Any) -> LogProbs:
        types.append(next(model.parameters()).dtype)
        return model_logprobs(model)

    monkeypatch.setattr(evaluator, "model_logprobs", noted)
    scene.run()
    assert types == [compared]


@pytest.mark.parametrize("kind", ["adapter", "shards"])
def test_a_checkpoint_of_another_form_becomes_whole(kind: str, scene: Scene, tmp_path: Path) -> None:
    makes = {"adapter": adapter(scene.model), "shards": shards(scene.model, 0.1)}
    checkpoint = scene.checkpoint(4, makes[kind])
    made = dict(read_weights(whole_weights(checkpoint, scene.model, tmp_path / "scratch")))
    base = load_file(scene.model / "model.safetensors")
    assert made.keys() == base.keys(), "under the names of the model's own files"
    changed = {name for name in base if not torch.equal(made[name], base[name])}
    if kind == "adapter":
        assert changed == {name for name in base if "q_proj" in name}
    else:
        assert all(torch.equal(made[name], base[name] + 0.1) for name in base)
    again = whole_weights(checkpoint, scene.model, tmp_path / "scratch")
    assert len(list(again.parent.iterdir())) == 1, "one copy at a time"


def test_a_folder_without_weights_is_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds no weights to evaluate"):
        whole_weights(scene.checkpoint(4, lambda folder: None), scene.model, tmp_path)


def test_only_the_files_of_the_index_are_read(scene: Scene, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert [name for name, _ in read_weights(tmp_path)] == ["a"]
