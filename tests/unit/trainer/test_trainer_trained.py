"""What TRL's trainer says of each sample that a step trained on: its advantage, and its ratio."""

import queue
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from gymtrain_trainer.framework import SampleGroup, TrainedSample, TrainingSample  # noqa: E402
from gymtrain_trainer.rollouts.buffer import GroupBuffer  # noqa: E402
from gymtrain_trainer.trl.batches import make_step  # noqa: E402
from gymtrain_trainer.trl.settings import Batch, StepSettings, trl_arguments  # noqa: E402
from gymtrain_trainer.trl.steps import StepTeller  # noqa: E402
from gymtrain_trainer.trl.trained import NAMES, TrainedSamples  # noqa: E402
from gymtrain_trainer.trl.trainer import build_trainer  # noqa: E402
from gymtrain_trainer.trl.worker import TRLWorker  # noqa: E402
from gymtrain_trainer.weights import Completion, model_logprobs  # noqa: E402
from tests.unit.trainer.test_trainer_settings import spec  # noqa: E402
from tests.unit.trainer.test_trainer_trl import Transfer  # noqa: E402

pytestmark = pytest.mark.torch


def sample(group: int, rollout: int, answer: Sequence[int], reward: float, **fields: Any) -> TrainingSample:
    """A prompt of three tokens, and an answer that was sampled with a probability of 0.02 each."""
    ids = [3, 4, 5 + group, *answer]
    return TrainingSample(
        token_ids=array("q", ids),
        mask=array("b", [0] * 3 + [1] * len(answer)),
        log_probs=array("f", [0.0] * 3 + [-4.0] * len(answer)),
        versions=(1,),
        group_id=group,
        rollout=rollout,
        agent="made up",
        reward=reward,
        **fields,
    )


def groups() -> list[SampleGroup]:
    """Two groups of two rollouts: one forked into two samples, one is masked."""
    first = (sample(7, 0, [9, 10], 1.0), sample(7, 1, [9, 11, 12], 0.0), sample(7, 1, [20, 9, 2, 8, 8], 0.0))
    second = (sample(8, 0, [30], 0.5, masked=True, truncated=True), sample(8, 1, [31, 9], 1.0))
    return [SampleGroup(7, "made up", (1.0, 0.0), first), SampleGroup(8, "made up", (0.5, 1.0), second)]


class Rollouts:
    """Two groups, which wait for the first step."""

    def __init__(self) -> None:
        self.buffer = GroupBuffer(lambda: 1)
        self.metrics: queue.Queue[Any] = queue.Queue()
        for group in groups():
            self.buffer.put(group)

    def start(self) -> None:
        """They are there."""

    def stop(self) -> None:
        """Nothing runs."""

    def update_model_version(self, model_version: int) -> None:
        """The only step uses what is there."""

    def check_health(self) -> None:
        raise AssertionError("the step wants more groups than there are")


class Callbacks:
    """Keeps what was trained."""

    def __init__(self) -> None:
        self.trained: list[TrainedSample] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None

    def on_step_end(self, steps: Any, trained: Sequence[TrainedSample] = ()) -> None:
        self.trained += trained


def one_step(model: Path, folder: Path, records: str, mode: str = "None") -> tuple[list[TrainedSample], Any]:
    """What was trained, and the model after the step. In two micro-batches."""
    config = {
        "learning_rate": 1e-2,
        "max_steps": 1,
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "report_to": "none",
    }
    trainer = {"checkpoint": {"claimName": "ck"}, "records": {"samples": records}}
    run = spec(config, trainer=trainer, rollout={"correction": {"mode": mode}})
    callbacks = Callbacks()
    teller = StepTeller(callbacks)
    made = build_trainer(
        trl_arguments(run, folder=folder, steps=1),
        model,
        callbacks=[teller],
        rollout_worker=TRLWorker(Rollouts()),
        weight_transfer=Transfer(),
        steps=StepSettings.of(run),
    )
    teller.trained = made.trained
    made.train()
    return callbacks.trained, made.accelerator.unwrap_model(made.model)


@pytest.mark.parametrize("mode", ["None", "TokenTruncate"])
def test_a_steps_samples_come_with_advantage_and_ratio(tiny_model: Path, tmp_path: Path, mode: str) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    score = model_logprobs(plain)
    trained, _ = one_step(tiny_model, tmp_path, "All", mode)
    assert [(one.group_id, one.index) for one in trained] == [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1)]
    assert [one.advantage for one in trained] == pytest.approx([1.0, -1.0, -1.0, -1.0, 1.0], abs=1e-6)
    for one, of in zip(trained, [made for group in groups() for made in group.samples], strict=True):
        if of.masked:
            assert (one.ratio, list(one.ratios)) == (None, [])
            continue
        ids = list(of.token_ids)
        [log_probs] = score([Completion(tuple(ids[:3]), tuple(ids[3:]))])
        ratios = (torch.tensor(log_probs) + 4.0).exp()
        assert one.ratio == pytest.approx(float(ratios.mean()), rel=1e-4)
        assert list(one.ratios) == pytest.approx(ratios.tolist(), rel=1e-3)


@pytest.mark.parametrize("mode", ["None", "TokenTruncate"])
def test_recording_changes_nothing_of_what_is_trained(tiny_model: Path, tmp_path: Path, mode: str) -> None:
    recorded, one = one_step(tiny_model, tmp_path / "one", "Sampled", mode)
    nothing, other = one_step(tiny_model, tmp_path / "other", "None", mode)
    assert (len(recorded), nothing) == (5, [])
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_fillers_and_masked_samples_have_no_name_and_without_records_nothing_has() -> None:
    batch = Batch(per_device=1, accumulation=1, processes=2, num_generations=2, token_budget=0)
    settings = StepSettings(batch)
    few = [SampleGroup(7, "made up", (1.0,), (sample(7, 0, [9, 10], 1.0),))]
    ranks, _ = make_step(few, batch, settings.loss, TrainedSamples())
    assert sorted([part.names for rank in ranks for part in rank], key=str) == [((7, 0),), (None,)]
    ranks, _ = make_step(groups(), batch, settings.loss, TrainedSamples())
    named = [name for rank in ranks for part in rank for name in part.names or ()]
    assert sorted(name for name in named if name) == [(7, 0), (7, 1), (7, 2), (8, 1)]
    ranks, _ = make_step(groups(), batch, settings.loss)
    assert [NAMES in part.packed() for rank in ranks for part in rank] == [False] * sum(map(len, ranks))


def test_a_sample_without_a_token_in_the_loss_has_no_ratio() -> None:
    trained = TrainedSamples()
    trained.plan(groups()[:1], [[1.0, -1.0]])
    row = {
        "token_index": torch.tensor([[0, 2, -1]]),
        "segment_id": torch.tensor([[0, 2, -1]]),
        "old_log_probs": torch.tensor([[-1.0, -2.0, 0.0]]),
        NAMES: ((7, 0), (7, 1), (7, 2)),
    }
    model = trained.watched(lambda **_: type("Outputs", (), {"log_probs": torch.tensor([[-1.0, 5.0, -1.0]])}), row)
    model()
    trained.gather()
    ratios = [one.ratio for one in trained.of_step()]
    assert ratios == [1.0, None, pytest.approx(2.718282)]


def test_a_step_does_not_show_ratios_of_the_one_before() -> None:
    trained = TrainedSamples()
    trained.plan(groups()[1:], [[1.0, -1.0]])
    row = {
        "token_index": torch.tensor([[0]]),
        "segment_id": torch.tensor([[0]]),
        "old_log_probs": torch.tensor([[-1.0]]),
        NAMES: ((8, 0),),
    }
    trained.watched(lambda **_: type("Outputs", (), {"log_probs": torch.tensor([[-1.0]])}), row)()
    trained.gather()
    assert [one.ratio for one in trained.of_step()] == [1.0, None]
    trained.plan(groups()[1:], [[1.0, -1.0]])
    trained.gather()
    assert [one.ratio for one in trained.of_step()] == [None, None]
