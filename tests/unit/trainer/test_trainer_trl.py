"""What stands on TRL and torch: attention, samples, config, and whole training runs with a model of 0.1 M parameters.

They need the trainer image's environment: uv run --extra trainer.
"""

import json
import queue
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import numpy as np  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from gymtrain_trainer.monitoring.kept_weights import KeptWeights  # noqa: E402
from gymtrain_trainer.monitoring.sample_check import SampleChecker  # noqa: E402
from gymtrain_trainer.rollouts.answer import Answer, Turn  # noqa: E402
from gymtrain_trainer.rollouts.buffer import Row  # noqa: E402
from gymtrain_trainer.rollouts.origins import Origin, Rollout  # noqa: E402
from gymtrain_trainer.rollouts.samples import to_samples  # noqa: E402
from gymtrain_trainer.trl.attention import TreeAttention  # noqa: E402

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


def answer(reward: float, *turns: tuple[list[int], list[int]]) -> Answer:
    made = [Turn(prompt, output, [-0.5] * len(output)) for prompt, output in turns]
    return Answer(made, reward, "text", truncated=False)


def rows(*rollouts: Rollout, **more: Any) -> list[Row]:
    return to_samples(rollouts, group_id=7, agent="adder", fork_threshold=1024, **more)


def samples(*answers: Answer) -> list[Any]:
    return [row.sample for row in rows(*(Rollout(answer, (3,)) for answer in answers))]


def origin(*versions: int, history: str = "exact") -> Origin:
    return Origin(versions, continues=history == "exact", forked=history == "forked")


def test_one_turn_is_one_row_that_trains_its_output_alone() -> None:
    first, second = samples(answer(1.0, ([1, 2, 3], [4, 5])), answer(0.0, ([1, 2, 3], [6])))
    assert first.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert first.completion_mask.tolist() == [0, 0, 0, 1, 1]
    assert first.old_log_probs.tolist() == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert first.advantage == pytest.approx(1.0)
    assert second.advantage == pytest.approx(-1.0)
    assert (first.group_id, first.model_version, first.metrics["reward"]) == (7, 3, 1.0)


def test_turns_whose_ids_continue_each_other_are_one_row() -> None:
    (row, _) = samples(answer(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 9], [5])), answer(0.0, ([1], [2])))
    assert row.input_ids.tolist() == [1, 2, 3, 4, 9, 5]
    assert row.completion_mask.tolist() == [0, 0, 1, 1, 0, 1]


def test_turns_that_were_tokenized_anew_keep_the_context_they_were_sampled_in() -> None:
    made = samples(answer(1.0, ([1, 2], [3, 4]), ([8, 2, 3, 4], [5])), answer(0.0, ([1], [2])))
    assert [row.input_ids.tolist() for row in made] == [[1, 2, 3, 4], [8, 2, 3, 4, 5], [1, 2]]
    assert made[0].advantage == made[1].advantage


def test_a_row_with_a_turn_that_a_grammar_held_is_known_as_one() -> None:
    turns = answer(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 9], [5]))
    held = Rollout(turns, (3,), (origin(3), replace(origin(3), constrained=True)))
    free = Rollout(turns, (3,), (origin(3), origin(3)))
    assert [row.constrained for row in rows(held, free)] == [True, False]


def test_what_tools_and_the_template_put_between_turns_is_never_trained() -> None:
    prompt, call, tool, final = [1, 2], [3, 4], [20, 21, 22], [5]
    (row, _) = samples(
        answer(1.0, (prompt, call), (prompt + call + tool, final)),
        answer(0.0, ([1], [2])),
    )
    assert row.input_ids.tolist() == prompt + call + tool + final
    assert row.completion_mask.tolist() == [0, 0, 1, 1, 0, 0, 0, 1]
    assert row.old_log_probs.tolist() == [0, 0, -0.5, -0.5, 0, 0, 0, -0.5]


def test_a_reported_fork_is_a_row_of_its_own_even_where_its_ids_would_continue() -> None:
    forked = Rollout(
        answer(1.0, ([1, 2], [3]), ([1, 2, 3, 9], [4])), (3,), (origin(3, history="first"), origin(3, history="forked"))
    )
    made = rows(forked, Rollout(answer(0.0, ([1], [2])), (3,), (origin(3, history="first"),)))
    assert [row.sample.input_ids.tolist() for row in made] == [[1, 2, 3], [1, 2, 3, 9, 4], [1, 2]]
    assert [row.sample.completion_mask.tolist() for row in made] == [[0, 0, 1], [0, 0, 0, 0, 1], [0, 1]]


def test_with_a_gateway_no_end_of_an_answer_is_dropped_to_make_rows_fit() -> None:
    turns = ([1, 2], [3, 4]), ([1, 2, 3, 9], [5])  # one token differs: TRL's threshold alone would overwrite it
    unknown = rows(Rollout(answer(1.0, *turns), (3,)), Rollout(answer(0.0, ([1], [2])), (3,)))
    assert [row.sample.input_ids.tolist() for row in unknown] == [[1, 2, 3, 9, 5], [1, 2]]
    known = rows(
        Rollout(answer(1.0, *turns), (3,), (origin(3, history="first"), origin(3))),
        Rollout(answer(0.0, ([1], [2])), (3,), (origin(3, history="first"),)),
    )
    assert [row.sample.input_ids.tolist() for row in known] == [[1, 2, 3, 4], [1, 2, 3, 9, 5], [1, 2]]


def test_a_rows_version_is_the_oldest_of_its_turns() -> None:
    made = rows(
        Rollout(answer(1.0, ([1], [3]), ([1, 3], [4])), (5,), (origin(6, history="first"), origin(5, 7))),
        Rollout(answer(0.0, ([1], [2])), (8,), (origin(8, history="first"),)),
    )
    assert [(row.sample.model_version, row.versions) for row in made] == [(5, (5, 6, 7)), (8, (8,))]


def test_a_truncated_rollout_is_masked_but_its_reward_counts_for_the_group() -> None:
    cut = Answer([Turn([1], [2, 3], [-0.5, -0.5])], 0.0, "", truncated=True)
    masked, whole = rows(Rollout(cut, (3,)), Rollout(answer(1.0, ([1], [4])), (3,)), mask_truncated=True)
    assert masked.sample.completion_mask.tolist() == [0, 1, 0]
    assert masked.sample.advantage == 0.0
    assert masked.sample.metrics["completions/truncated_frac"] == 1.0
    assert whole.sample.advantage == pytest.approx(1.0)
    kept, _ = rows(Rollout(cut, (3,)), Rollout(answer(1.0, ([1], [4])), (3,)))
    assert (kept.sample.completion_mask.tolist(), kept.sample.advantage) == ([0, 1, 1], pytest.approx(-1.0))


# --- config ---


def test_trls_own_class_judges_the_config() -> None:
    from gymtrain_trainer.preflight.main import check_config
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
    from gymtrain_trainer.preflight.main import check_config
    from tests.unit.trainer.test_trainer_settings import spec

    config = {"max_steps": 4, "num_generations": 8, "bf16": True, "tf32": True, "gradient_checkpointing": True}
    assert check_config(spec(config, trainer={"gpus": 8, "processesPerNode": 8})) == []


# --- training ---


class Rollouts:
    """A worker with samples of its own: the reward is the share of token ids below 20."""

    def __init__(self, model: Any, per_step: int, masked: bool = False) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.rewards: list[float] = []
        self._model = model
        self._per_step = per_step
        self._version = 0
        self._masked = masked
        self.made: list[Row] = []

    def start(self) -> None:
        """TRL has synced once."""

    def stop(self) -> None:
        """Nothing runs."""

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version
        self._group()

    def check_health(self, stale_after_s: float) -> None:
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
            answers.append(Answer([Turn(prompt, ids[3:], log_probs)], reward, "", truncated=self._masked))
        self.rewards.append(sum(a.reward for a in answers) / len(answers))
        group = len(self.rewards)
        rollouts = [Rollout(answer, (self._version,)) for answer in answers]
        for row in to_samples(
            rollouts, group_id=group, agent="share", fork_threshold=1024, mask_truncated=self._masked
        ):
            self.rollout_buffer.put(row.sample)
            self.made.append(row)


class Transfer:
    """Drains the weights, as every rank has to."""

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
        rollout_worker=worker,
        weight_transfer=transfer,
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
    checker = SampleChecker(kept, lambda: config, ProgressBoard(), temperature=1.0, tolerance=0.005, share=1.0)
    made = [row for row in worker.made if row.versions[0] in (1, 3)]
    for row in made:
        checker.take(row)
    checker.report(1)
    for row in made:
        checker.take(Row(row.sample, (4 - row.versions[0],)))
        checker.take(Row(row.sample, (1, 3)))  # sampled by either, as far as one knows
    checker.report(2)
    checker.total()
    right, wrong, total = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "sample_check" in line]
    assert (right["samples"], right["wrong"], right["unchecked"]) == (len(made), 0, 0)
    assert right["worst"] < 1e-4
    assert wrong["wrong"] == len(made)
    assert total["wrong"] == len(made)
