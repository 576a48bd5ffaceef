"""From the turns of rollouts to training samples: sequences, masks, versions."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.rollouts.answer import Answer, Turn
from gymtrain_trainer.rollouts.origins import Origin, Rollout
from gymtrain_trainer.rollouts.samples import chains, to_samples


def answer(reward: float, *turns: tuple[list[int], list[int]]) -> Answer:
    made = [Turn.of(prompt, output, [-0.5] * len(output)) for prompt, output in turns]
    return Answer(made, reward, "text", truncated=False)


def samples_of(*rollouts: Rollout, **more: Any) -> list[TrainingSample]:
    return list(to_samples(rollouts, group_id=7, agent="adder", fork_threshold=1024, **more).samples)


def samples(*answers: Answer) -> list[TrainingSample]:
    return samples_of(*(Rollout(answer, (3,)) for answer in answers))


def origin(*versions: int, history: str = "exact") -> Origin:
    return Origin(versions, continues=history == "exact", forked=history == "forked")


def test_one_turn_is_one_sample_that_trains_its_output_alone() -> None:
    first, second = samples(answer(1.0, ([1, 2, 3], [4, 5])), answer(0.0, ([1, 2, 3], [6])))
    assert list(first.token_ids) == [1, 2, 3, 4, 5]
    assert list(first.mask) == [0, 0, 0, 1, 1]
    assert list(first.log_probs) == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert (first.rollout, second.rollout, second.reward) == (0, 1, 0.0)
    assert (first.group_id, first.version, first.reward, first.agent) == (7, 3, 1.0, "adder")


def test_turns_whose_ids_continue_each_other_are_one_sample() -> None:
    (sample, _) = samples(answer(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 9], [5])), answer(0.0, ([1], [2])))
    assert list(sample.token_ids) == [1, 2, 3, 4, 9, 5]
    assert list(sample.mask) == [0, 0, 1, 1, 0, 1]


def test_turns_that_were_tokenized_again_keep_the_context_they_were_sampled_in() -> None:
    made = samples(answer(1.0, ([1, 2], [3, 4]), ([8, 2, 3, 4], [5])), answer(0.0, ([1], [2])))
    assert [list(sample.token_ids) for sample in made] == [[1, 2, 3, 4], [8, 2, 3, 4, 5], [1, 2]]
    assert [sample.rollout for sample in made] == [0, 0, 1]


def test_a_sample_with_a_turn_that_a_grammar_held_is_known_as_one() -> None:
    turns = answer(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 9], [5]))
    held = Rollout(turns, (3,), (origin(3), replace(origin(3), constrained=True)))
    free = Rollout(turns, (3,), (origin(3), origin(3)))
    assert [sample.constrained for sample in samples_of(held, free)] == [True, False]


def test_what_tools_and_the_template_put_between_turns_is_never_trained() -> None:
    prompt, call, tool, final = [1, 2], [3, 4], [20, 21, 22], [5]
    (sample, _) = samples(
        answer(1.0, (prompt, call), (prompt + call + tool, final)),
        answer(0.0, ([1], [2])),
    )
    assert list(sample.token_ids) == prompt + call + tool + final
    assert list(sample.mask) == [0, 0, 1, 1, 0, 0, 0, 1]
    assert list(sample.log_probs) == [0, 0, -0.5, -0.5, 0, 0, 0, -0.5]


def test_a_reported_fork_is_a_sample_of_its_own_even_where_its_ids_would_continue() -> None:
    forked = Rollout(
        answer(1.0, ([1, 2], [3]), ([1, 2, 3, 9], [4])), (3,), (origin(3, history="first"), origin(3, history="forked"))
    )
    made = samples_of(forked, Rollout(answer(0.0, ([1], [2])), (3,), (origin(3, history="first"),)))
    assert [list(sample.token_ids) for sample in made] == [[1, 2, 3], [1, 2, 3, 9, 4], [1, 2]]
    assert [list(sample.mask) for sample in made] == [[0, 0, 1], [0, 0, 0, 0, 1], [0, 1]]


def test_with_a_gateway_no_end_of_an_answer_is_dropped_to_make_turns_fit() -> None:
    turns = ([1, 2], [3, 4]), ([1, 2, 3, 9], [5])  # one token differs: the threshold alone would overwrite it
    unknown = samples_of(Rollout(answer(1.0, *turns), (3,)), Rollout(answer(0.0, ([1], [2])), (3,)))
    assert [list(sample.token_ids) for sample in unknown] == [[1, 2, 3, 9, 5], [1, 2]]
    known = samples_of(
        Rollout(answer(1.0, *turns), (3,), (origin(3, history="first"), origin(3))),
        Rollout(answer(0.0, ([1], [2])), (3,), (origin(3, history="first"),)),
    )
    assert [list(sample.token_ids) for sample in known] == [[1, 2, 3, 4], [1, 2, 3, 9, 5], [1, 2]]


def test_a_samples_version_is_the_oldest_of_its_turns() -> None:
    made = samples_of(
        Rollout(answer(1.0, ([1], [3]), ([1, 3], [4])), (5,), (origin(6, history="first"), origin(5, 7))),
        Rollout(answer(0.0, ([1], [2])), (8,), (origin(8, history="first"),)),
    )
    assert [(sample.version, sample.versions) for sample in made] == [(5, (5, 6, 7)), (8, (8,))]


def test_a_truncated_rollout_is_masked_where_the_run_says_so() -> None:
    cut = Answer([Turn.of([1], [2, 3], [-0.5, -0.5])], 0.0, "", truncated=True)
    masked, whole = samples_of(Rollout(cut, (3,)), Rollout(answer(1.0, ([1], [4])), (3,)), mask_truncated=True)
    assert [(sample.masked, sample.truncated) for sample in (masked, whole)] == [(True, True), (False, False)]
    kept, _ = samples_of(Rollout(cut, (3,)), Rollout(answer(1.0, ([1], [4])), (3,)))
    assert (kept.masked, kept.truncated) == (False, True)


def test_each_token_has_its_place_in_every_column() -> None:
    (sample, _) = samples(answer(1.0, ([1, 2], [3, 4]), ([1, 2, 3, 4, 9], [5])), answer(0.0, ([1], [2])))
    columns = zip(sample.token_ids, sample.mask, sample.log_probs, strict=True)
    assert [trained for _, trained, score in columns if score] == [1, 1, 1]
    with pytest.raises(ValueError, match=r"have \(6, 5, 6\) entries"):
        replace(sample, mask=sample.mask[:-1])


def test_a_long_history_differs_where_it_differs() -> None:
    history = list(range(9000))
    changed = [*history[:8500], 99_999, *history[8501:]]
    (whole,) = chains([Turn.of(history[:10], history[10:], [-0.5] * 8990), Turn.of(changed, [7], [-0.25])], 1024)
    assert (list(whole.token_ids), list(whole.mask[8499:8502])) == ([*changed, 7], [1, 0, 0])
    assert [
        len(one.mask) for one in chains([Turn.of([1], [2] * 4100, [-0.5] * 4100), Turn.of([9], [7], [-0.25])], 1024)
    ] == [
        4101,
        2,
    ]


def test_a_group_has_the_rewards_of_all_its_rollouts() -> None:
    cut = Answer([Turn.of([1], [2, 3], [-0.5, -0.5])], 0.25, "", truncated=True)
    rollouts = [Rollout(cut, (3,)), Rollout(answer(1.0, ([1, 2], [3, 4]), ([8, 2, 3, 4], [5])), (2,))]
    made = to_samples(rollouts, group_id=7, agent="adder", fork_threshold=1024, mask_truncated=True)
    assert (made.id, made.agent, made.rewards, made.version) == (7, "adder", (0.25, 1.0), 2)
