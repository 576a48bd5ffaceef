"""What stands on TRL and torch: attention, samples, config, and whole training runs with a model of 0.1 M parameters.

They need the trainer image's environment: uv run --extra trainer.
"""

import dataclasses
import json
import queue
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import numpy as np  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from gymtrain_trainer.framework import TrainingSample  # noqa: E402
from gymtrain_trainer.monitoring.kept_weights import KeptWeights  # noqa: E402
from gymtrain_trainer.monitoring.sample_check import SampleChecker  # noqa: E402
from gymtrain_trainer.rollouts.answer import Answer, Turn  # noqa: E402
from gymtrain_trainer.rollouts.buffer import GroupBuffer  # noqa: E402
from gymtrain_trainer.rollouts.origins import Rollout  # noqa: E402
from gymtrain_trainer.rollouts.samples import chains, to_samples  # noqa: E402
from gymtrain_trainer.trl.attention import TreeAttention  # noqa: E402
from gymtrain_trainer.trl.settings import StepSettings  # noqa: E402
from gymtrain_trainer.trl.worker import TRLWorker  # noqa: E402

pytestmark = pytest.mark.torch

HEADS, KV_HEADS, WIDTH = 6, 2, 16


# --- attention ---


def tree_row(groups: int = 3, samples: int = 4) -> Any:
    """A row of TRL's with prompts shared by the samples of a group."""
    from trl.experimental.async_grpo.packing import TreeRow

    random, row = np.random.default_rng(0), TreeRow()
    for group in range(groups):
        prompt = random.integers(0, 50, random.integers(5, 20)).tolist()
        for _ in range(samples):
            completion = random.integers(0, 3, random.integers(1, 8)).tolist()
            ids = np.array(prompt + completion)
            mask = np.array([0] * len(prompt) + [1] * len(completion))
            row.add(
                {
                    "input_ids": ids,
                    "completion_mask": mask,
                    "old_log_probs": np.zeros(len(ids)),
                    "advantage": 1.0,
                    "group_id": group,
                }
            )
    return row


def projections(ids: Any, positions: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values that depend on token and position alone."""
    table = torch.randn(64, HEADS * WIDTH, generator=torch.Generator().manual_seed(0))
    hidden = table[ids] + torch.sin(positions[:, None] * torch.arange(HEADS * WIDTH)[None])

    def split(part: Any, heads: int) -> Any:
        return part.reshape(-1, heads, WIDTH).transpose(0, 1)[None]

    return (
        split(hidden, HEADS),
        split(hidden[:, : KV_HEADS * WIDTH], KV_HEADS),
        split(hidden[:, -KV_HEADS * WIDTH :], KV_HEADS),
    )


def tree_arguments(packed: dict[str, Any]) -> dict[str, Any]:
    """What TRL passes to the attention of every layer."""
    tree = {key: packed[key] for key in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    longest_segment, longest_path = packed["tree_max_seqlens"].tolist()
    return tree | {"tree_max_seqlen_q": longest_segment, "tree_max_seqlen_k": longest_path}


def packed_positions(row: Any) -> dict[int, int]:
    """Place of each node in the packed row: depth-first, as TRL lays it out."""
    order: dict[int, int] = {}
    stack = list(reversed(row.roots.values()))
    while stack:
        node = stack.pop()
        order[node] = len(order)
        stack.extend(reversed(row.children[node].values()))
    return order


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("dense_limit", [2048, 0], ids=["dense", "by segment"])
def test_attention_over_a_tree_is_attention_over_each_sample_alone(window: int | None, dense_limit: int) -> None:
    row = tree_row()
    packed = row.pack()
    tree = tree_arguments(packed)
    query, key, value = projections(packed["input_ids"], packed["position_ids"])
    out, _ = TreeAttention(dense_limit)(
        torch.nn.Identity(), query, key, value, None, scaling=0.25, sliding_window=window, **tree
    )
    places = packed_positions(row)
    for sample, nodes in zip(row.samples, row.sample_nodes, strict=True):
        ids = torch.tensor(sample["input_ids"])
        query, key, value = projections(ids, torch.arange(len(ids)))
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        if window:
            mask &= torch.ones_like(mask).triu(1 - window)
        alone = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=0.25, enable_gqa=True
        )
        mine = out[:, [places[node] for node in nodes]]
        torch.testing.assert_close(mine, alone.transpose(1, 2), atol=2e-6, rtol=1e-5)


def test_a_second_row_is_not_given_the_first_ones_mask() -> None:
    attention = TreeAttention()
    for row in (tree_row(2, 2), tree_row(3, 4)):
        packed = row.pack()
        tree = tree_arguments(packed)
        out, _ = attention(
            torch.nn.Identity(), *projections(packed["input_ids"], packed["position_ids"]), None, scaling=0.25, **tree
        )
        again, _ = TreeAttention()(
            torch.nn.Identity(), *projections(packed["input_ids"], packed["position_ids"]), None, scaling=0.25, **tree
        )
        torch.testing.assert_close(out, again)


# --- samples ---


def test_turns_become_the_sequences_that_trls_own_worker_makes_of_them() -> None:
    from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

    random = np.random.default_rng(0)
    kinds = set()
    for number in range(300):
        turns: list[Turn] = []
        held: list[int] = []
        for _ in range(random.integers(1, 5)):
            prompt = held + random.integers(0, 9, random.integers(0, 3)).tolist()
            if turns and random.random() < 0.5:  # the template, or the tokenizer, changes something
                prompt[random.integers(0, len(prompt))] = 77
            output = random.integers(0, 9, random.integers(0, 4)).tolist()
            turns.append(Turn.of(prompt or [1], output, [-0.25 * (number % 3)] * len(output)))
            held = list(turns[-1].prompt_ids) + output
        threshold = int(random.choice([0, 2, 1024]))
        records = [TurnRecord(list(turn.prompt_ids), list(turn.output_ids), list(turn.log_probs)) for turn in turns]
        theirs, tally = _chain_to_sequences(records, "x", threshold)
        kinds |= {kind for kind in ("clean", "realign", "fork") if tally[kind]}
        assert [(list(c.token_ids), list(c.mask), list(c.log_probs)) for c in chains(turns, threshold)] == [
            (one.input_ids, one.completion_mask, one.old_log_probs) for one in theirs
        ]
    assert kinds == {"clean", "realign", "fork"}, "or the test proves nothing"


# --- config ---


def test_what_we_count_as_defaults_are_trls() -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    from gymtrain_trainer.trl.settings import Batch, training_settings
    from tests.unit.trainer.test_trainer_settings import spec

    theirs = {field.name: field.default for field in dataclasses.fields(AsyncGRPOConfig)}
    ours, batch = training_settings(spec(), None), Batch.of(spec())
    assert ours.group_size == theirs["num_generations"]
    assert (ours.sync_every_steps, ours.fork_threshold) == (
        theirs["weight_sync_steps"],
        theirs["fork_threshold_tokens"],
    )
    assert (ours.temperature, ours.seed) == (theirs["temperature"], theirs["seed"])
    assert ours.max_completion_tokens == theirs["max_completion_length"]
    assert (batch.per_device, batch.accumulation) == (
        theirs["per_device_train_batch_size"],
        theirs["gradient_accumulation_steps"],
    )


def test_trls_own_class_judges_the_config() -> None:
    from gymtrain_trainer.trl.config_checks import check_config
    from tests.unit.trainer.test_trainer_settings import spec

    good = {"learning_rate": 1e-5, "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 4}
    assert check_config(spec(good)) == []
    (unknown,) = check_config(spec(good | {"learning_rat": 1e-5}))
    assert "did you mean learning_rate?" in unknown.message
    (wrong,) = check_config(spec(good | {"lr_scheduler_type": "cosin"}))
    assert wrong.where == "spec.trainer.config.lr_scheduler_type"
    (typed,) = check_config(spec(good | {"save_steps": "often"}))
    assert "save_steps" in typed.where
    (broken,) = check_config(spec(good | {"optim": "adamm"}))
    assert broken.message.startswith("TRL refuses it")
    assert broken.where == "spec.trainer.config.optim"


def test_a_gpu_runs_config_can_be_judged_without_a_gpu() -> None:
    from gymtrain_trainer.trl.config_checks import check_config
    from tests.unit.trainer.test_trainer_settings import spec

    config = {"max_steps": 4, "num_generations": 8, "bf16": True, "tf32": True, "gradient_checkpointing": True}
    assert check_config(spec(config, trainer={"gpus": 8, "processesPerNode": 8})) == []


# --- training ---


class Rollouts:
    """A worker with samples of its own: the reward is the share of token ids below 20."""

    def __init__(self, model: Any, per_step: int, masked: bool = False) -> None:
        self.buffer = GroupBuffer(lambda: self._version)
        self.metrics: queue.Queue[Any] = queue.Queue()
        self.rewards: list[float] = []
        self._model = model
        self._per_step = per_step
        self._version = 0
        self._masked = masked
        self.made: list[TrainingSample] = []

    def start(self) -> None:
        """TRL has synced once."""

    def stop(self) -> None:
        """Nothing runs."""

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version
        self._group()

    def check_health(self) -> None:
        self._group()

    def _group(self) -> None:
        model = self._model()
        prompt = [3, 4, 5]
        answers = []
        for _ in range(self._per_step):
            ids, log_probs = list(prompt), []
            for _ in range(6):
                with torch.no_grad():
                    scores = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].log_softmax(-1)
                token = int(torch.multinomial(scores.exp(), 1))
                log_probs.append(float(scores[token]))
                ids.append(token)
            reward = sum(token < 20 for token in ids[3:]) / 6
            answers.append(Answer([Turn.of(prompt, ids[3:], log_probs)], reward, "", truncated=self._masked))
        self.rewards.append(sum(a.reward for a in answers) / len(answers))
        group = len(self.rewards)
        rollouts = [Rollout(answer, (self._version,)) for answer in answers]
        made = to_samples(rollouts, group_id=group, agent="share", fork_threshold=1024, mask_truncated=self._masked)
        self.buffer.put(made)
        self.made += made.samples


class Transfer:
    """Drains the weights, as every rank has to."""

    sent_dtype = None

    def __init__(self, kept: KeptWeights | None = None) -> None:
        self.names: list[list[str]] = []
        self._kept = kept

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Nobody to pause."""

    def send_weights(self, iterator: Any) -> None:
        if self._kept is not None:
            iterator = self._kept.watch(len(self.names) + 1, iterator)
        self.names.append([name for name, _ in iterator])

    def resume(self) -> None:
        """Nobody to resume."""

    def destroy(self) -> None:
        """Nothing to free."""


class Logs(TrainerCallback):  # type: ignore[misc]
    """Keeps TRL's numbers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append(dict(logs or {}))


def run(
    tiny_model: Path,
    folder: Path,
    steps: int,
    *,
    accumulation: int = 1,
    masked: bool = False,
    kept: KeptWeights | None = None,
) -> tuple[Rollouts, Transfer, Logs]:
    """Trains with TRL's trainer as the image does; sampling is on-policy."""
    from gymtrain_trainer.trl.settings import trl_arguments
    from gymtrain_trainer.trl.trainer import build_trainer
    from tests.unit.trainer.test_trainer_settings import spec

    config = {
        "learning_rate": 1e-2,
        "max_steps": steps,
        "num_generations": 16,
        "per_device_train_batch_size": 16 // accumulation,
        "gradient_accumulation_steps": accumulation,
        "report_to": "none",
    }
    holder: list[Any] = []

    def plain_model() -> Any:
        model = holder[0].model
        model.config._attn_implementation = "sdpa"
        return model

    class Patient(Rollouts):
        def _group(self) -> None:
            implementation = holder[0].model.config._attn_implementation
            try:
                super()._group()
            finally:
                holder[0].model.config._attn_implementation = implementation

    worker, transfer, logs = Patient(plain_model, 16, masked), Transfer(kept), Logs()
    trainer = build_trainer(
        trl_arguments(spec(config), folder=folder, steps=steps),
        tiny_model,
        callbacks=[logs],
        rollout_worker=TRLWorker(worker),
        weight_transfer=transfer,
        steps=StepSettings.of(spec(config)),
    )
    holder.append(trainer)
    trainer.train()
    return worker, transfer, logs


def test_the_first_step_agrees_with_the_sampler_about_every_token(tiny_model: Path, tmp_path: Path) -> None:
    _, _, logs = run(tiny_model, tmp_path, 1)
    assert logs.rows[0]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert logs.rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_training_on_the_cpu_raises_the_reward(tiny_model: Path, tmp_path: Path) -> None:
    worker, transfer, _ = run(tiny_model, tmp_path, 25, accumulation=2)
    assert sum(worker.rewards[-5:]) > 1.5 * sum(worker.rewards[:5])
    assert len(transfer.names) == 26  # the cold sync and one a step
    assert "model.embed_tokens.weight" in transfer.names[0]


def test_a_batch_of_masked_rollouts_alone_trains_nothing_and_breaks_nothing(tiny_model: Path, tmp_path: Path) -> None:
    _, _, logs = run(tiny_model, tmp_path, 2, accumulation=16, masked=True)
    assert logs.rows[1]["grad_norm"] == 0.0


def test_the_checker_tells_right_samples_from_ones_with_another_versions_label(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoConfig

    from gymtrain_trainer.progress import ProgressBoard

    kept = KeptWeights(4)
    worker, _, _ = run(tiny_model, tmp_path, 2, kept=kept)
    assert kept.versions() == [1, 2, 3]
    config = AutoConfig.from_pretrained(tiny_model)
    checker = SampleChecker(kept, lambda: config, ProgressBoard(), temperature=1.0, share=1.0)
    checker.watch(4, iter(()), "float32")
    made = [one for one in worker.made if one.version in (1, 3)]
    for one in made:
        checker.take(one)
    checker.report(1)
    for one in made:
        checker.take(dataclasses.replace(one, versions=(4 - one.version,)))
        checker.take(dataclasses.replace(one, versions=(1, 3)))  # sampled by either, as far as one knows
    checker.report(2)
    checker.total()
    right, wrong, total = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "sample_check" in line]
    assert (right["samples"], right["wrong"], right["unchecked"]) == (len(made), 0, 0)
    assert right["worst"] < 1e-4
    assert wrong["wrong"] == len(made)
    assert total["wrong"] == len(made)


def test_a_kept_version_is_what_vllm_gets_and_not_what_the_trainer_has() -> None:
    """A step too small for bfloat16 leaves vLLM with the weights of the version before."""
    kept = KeptWeights(2)
    sent = {"moved": torch.tensor([1.0 + 1e-5, -0.5]), "count": torch.tensor([3])}

    passed = dict(kept.watch(1, iter(sent.items()), "bfloat16"))

    assert all(passed[name] is tensor for name, tensor in sent.items()), "the transport casts for itself"
    assert kept.tensors(1)["moved"].tolist() == [1.0, -0.5]
    assert kept.tensors(1)["count"].tolist() == [3.0]
    for _ in kept.watch(2, iter(sent.items())):
        pass
    assert kept.tensors(2)["moved"].tolist() != [1.0, -0.5], "nothing casts it"


def idle_trainer(tiny_model: Path, folder: Path, **parts: Any) -> Any:
    """A trainer that is made and not started. `parts`: of the run's spec."""
    from gymtrain_trainer.trl.settings import trl_arguments
    from gymtrain_trainer.trl.trainer import build_trainer
    from tests.unit.trainer.test_trainer_settings import spec

    config = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4, "report_to": "none"}
    run = spec(config, **parts)
    trainer = build_trainer(
        trl_arguments(run, folder=folder, steps=1),
        tiny_model,
        callbacks=[],
        rollout_worker=TRLWorker(Rollouts(lambda: None, 4)),
        weight_transfer=Transfer(),
        steps=StepSettings.of(run),
    )
    trainer.current_gradient_accumulation_steps = 1  # as training would set it
    return trainer


def test_the_trained_model_scores_one_sequence_as_any_model_does(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from gymtrain_trainer.trl.attention import TREE_ATTENTION
    from gymtrain_trainer.trl.parity import trained_log_probs
    from gymtrain_trainer.weights import Completion, model_logprobs

    made = idle_trainer(tiny_model, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    sequence = [Completion((3, 4, 5), (6, 7))]
    assert trained_log_probs(made, sequence)[0] == pytest.approx(model_logprobs(plain)(sequence)[0], abs=1e-5)
    assert made.model.config._attn_implementation == TREE_ATTENTION
